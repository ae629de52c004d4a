//! Pods whose sidecar is Envoy: the application's requests go through it to a server outside.

use std::{fs, net::SocketAddr, path::Path};

use anyhow::Result;
use lab::{
    agent::Agent,
    command::Process,
    deploy::checkout,
    envoy::{self, address, binary, manager, original_dst, tcp_proxy},
    network::{Lab, PodNet},
};
use serde_json::{Value, json};

use crate::{
    field::Field,
    pods::{
        ACCELERATED, APP, Contestant, IPTABLES, NOTHING, PROXY, SIDETRACK, VIP, load_rules,
        manifest, pod_name,
    },
    worker::Worker,
};

/// What Envoy listens on for those that dial it themselves, for TCP.
const PLAIN_TCP: u16 = 15002;
const HTTP: u16 = 80;
const BYTES: u16 = 81;

/// Name, lab, the command that loads iptables rules.
const PODS: [(&str, usize, Option<&str>); 5] = [
    (NOTHING, 0, None),
    (IPTABLES, 0, Some("iptables-nft-restore")),
    ("iptables-legacy", 0, Some("iptables-legacy-restore")),
    (SIDETRACK, 1, None),
    (ACCELERATED, 1, None),
];

/// The pods. Fields drop in order.
pub struct Meshed {
    pods: Vec<Pod>,
    _servers: Vec<Worker>,
    _agent: Agent,
    _labs: [Lab; 2],
}

struct Pod {
    name: &'static str,
    app: Worker,
    _envoy: Process,
}

impl Meshed {
    /// Builds all of them.
    pub fn new() -> Result<Self> {
        let mut labs = [Lab::new()?, Lab::new()?];
        let agent = Agent::start(labs[1].places())?;
        let mut servers = Vec::new();
        for lab in &labs {
            lab.add_outside(VIP)?;
            for (port, order) in [(HTTP, "web"), (BYTES, "bytes")] {
                let server = Worker::start(&lab.outside(), 0, port)?;
                server.send(order)?;
                servers.push(server);
            }
        }
        let mut pods = Vec::new();
        for (number, (name, lab, restore)) in (2..).zip(PODS) {
            let lab_number = lab;
            let lab = &mut labs[lab];
            let net = lab.pod(&format!("mesh{number}"), number)?;
            let text = manifest(name, &net);
            if let Some(restore) = restore {
                let file = lab.dir().join("pod.json");
                fs::write(&file, text.to_string())?;
                load_rules(&agent, &net, &file.to_string_lossy(), restore)?;
            } else if lab_number == 1 {
                lab.write_manifest(&pod_name(name), &text)?;
                agent
                    .places
                    .wait_enrolled(&format!("test/{}", pod_name(name)))?;
            }
            let config = lab.dir().join(format!("envoy{number}.json"));
            fs::write(&config, bootstrap(name == NOTHING).to_string())?;
            pods.push(Pod {
                name,
                _envoy: Self::start_envoy(&net, &config)?,
                app: Worker::start(&net, APP, 0)?,
            });
        }
        Ok(Self {
            pods,
            _servers: servers,
            _agent: agent,
            _labs: labs,
        })
    }

    /// Those that take part in a field.
    pub fn contestants(&self, field: Field) -> Vec<Contestant<'_>> {
        let is_tcp = field == Field::EnvoyTcp;
        let to = |name: &str| -> SocketAddr {
            let text = match (name == NOTHING, is_tcp) {
                (true, false) => "127.0.0.1:15001".to_owned(),
                (true, true) => format!("127.0.0.1:{PLAIN_TCP}"),
                (false, false) => format!("{VIP}:{HTTP}"),
                (false, true) => format!("{VIP}:{BYTES}"),
            };
            text.parse().expect("an address")
        };
        let pods = self.pods.iter();
        pods.map(|pod| Contestant {
            name: pod.name,
            client: &pod.app,
            server: &pod.app,
            to: to(pod.name),
        })
        .collect()
    }
}

impl Meshed {
    fn start_envoy(pod: &PodNet, config: &Path) -> Result<Process> {
        let program = binary(&checkout("target/tools/python"))?;
        let config = config.to_string_lossy();
        let arguments = [
            // On the processor of all others.
            "-c",
            "0",
            &program,
            "-c",
            &config,
            "--concurrency",
            "1",
            "--disable-hot-restart",
            "--log-level",
            "error",
        ];
        envoy::start(pod, pod.command(PROXY, Path::new("taskset"), &arguments))
    }
}

/// Outbound HTTP to the server outside, everything else to its original destination.
fn bootstrap(is_dialed: bool) -> Value {
    let web = json!({"match": {"prefix": "/"}, "route": {"cluster": "web"}});
    let web = manager("web", &web, json!([]));
    let cluster = |name: &str, port: u16| {
        json!({
            "name": name, "type": "STATIC", "connect_timeout": "1s",
            "load_assignment": {"cluster_name": name, "endpoints": [
                {"lb_endpoints": [{"endpoint": {"address": address(VIP, port)}}]},
            ]},
        })
    };
    let listener = |name: &str, ip: &str, port: u16, filter: Value| {
        json!({
            "name": name, "address": address(ip, port), "filter_chains": [{"filters": [filter]}],
        })
    };
    let listeners = if is_dialed {
        json!([
            listener("web", "0.0.0.0", 15001, web),
            listener("bytes", "0.0.0.0", PLAIN_TCP, tcp_proxy("bytes")),
        ])
    } else {
        let mut outbound = listener(
            "virtualOutbound",
            "0.0.0.0",
            15001,
            tcp_proxy("passthrough"),
        );
        outbound["use_original_dst"] = true.into();
        outbound["listener_filters"] = json!([original_dst()]);
        let mut inner = listener("web", VIP, HTTP, web);
        inner["bind_to_port"] = false.into();
        json!([outbound, inner])
    };
    let passthrough = json!({
        "name": "passthrough", "type": "ORIGINAL_DST", "lb_policy": "CLUSTER_PROVIDED",
        "connect_timeout": "1s",
    });
    json!({
        "node": {"id": "bench", "cluster": "bench"},
        "static_resources": {
            "listeners": listeners,
            "clusters": [cluster("web", HTTP), cluster("bytes", BYTES), passthrough],
        },
    })
}
