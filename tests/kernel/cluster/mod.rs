//! Pods from the API server.

use std::{
    collections::HashMap,
    fs,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, anyhow, ensure};
use lab::{
    actor::Actor,
    agent::{Agent, Extra, Places},
    apiserver::ApiServer,
    command::{die_with_parent, run_words},
    deploy::{USED, capabilities},
    injected::{LABEL, injected, namespace},
    network::{Lab, PodNet},
    protocol::{APP, Dial, PROXY, ROOT},
    sidecar,
};
use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::{
    OwnTest,
    fixture::{at, nothing_is_left},
};

const VIP: &str = "10.109.118.31";
/// Changes are in force after at most this.
const SOON: Duration = Duration::from_secs(1);

pub fn tests() -> Vec<(&'static str, OwnTest)> {
    vec![
        ("cluster::labels_annotations_and_deletion", follow),
        ("cluster::outages_and_restarts", outage),
        ("cluster::a_recreated_sandbox_is_followed", sandbox),
        ("cluster::a_process_cannot_take_its_pod_out", wanderer),
        ("cluster::pods_with_iptables_rules_are_taken_over", migrated),
        ("cluster::who_is_not_taken", not_taken),
        ("cluster::health_and_metrics", health),
        (
            "cluster::the_capabilities_in_deploy_suffice",
            few_capabilities,
        ),
        ("cluster::a_deleted_daemonset_leaves_nothing", uninstall),
        ("cluster::pods_250", many),
    ]
}

/// A cluster of one node. Fields drop in order.
struct Node {
    agent: Agent,
    api: ApiServer,
    lab: Lab,
}

impl Node {
    fn new() -> Result<Self> {
        let lab = Lab::new()?;
        lab.add_outside(VIP)?;
        let api = ApiServer::start(lab.dir())?;
        api.apply(namespace("shop", None))?;
        let agent = start(&lab, &api)?;
        Ok(Self { agent, api, lab })
    }

    fn places(&self) -> &Places {
        self.lab.places()
    }

    /// Waits for a pod's row, and checks that it took no longer than it may.
    fn soon(&self, name: &str, wanted: impl Fn(Option<&Value>) -> bool) -> Result<()> {
        let took = self.places().wait_pod(name, wanted)?;
        ensure!(took < SOON, "it took {took:?}");
        Ok(())
    }

    fn is_taken(&self, name: &str, taken: bool) -> Result<()> {
        let state = if taken { "enrolled" } else { "not-taken" };
        self.soon(name, |pod| pod.is_some_and(|pod| pod["state"] == state))
    }

    fn label(&self, kind: &str, name: &str, value: Option<&str>) -> Result<()> {
        let namespace = if kind == "Pod" { "shop" } else { "" };
        self.api.edit(kind, namespace, name, |object| {
            object["metadata"]["labels"][LABEL] = json!(value);
            if value.is_none() {
                object["metadata"]["labels"] = json!({});
            }
        })
    }
}

fn start(lab: &Lab, api: &ApiServer) -> Result<Agent> {
    Agent::start_with(
        lab.places(),
        &Extra {
            api: Some(api),
            ..Extra::default()
        },
    )
}

/// The pods that the articles show, by the version of Istio that injected them, and a native sidecar;
/// with the dialect each is judged by.
fn of_every_version(number: usize, name: &str, uid: &str) -> (Value, &'static str) {
    let flags = |more: &[&'static str]| {
        let mut words = vec![
            "-p", "15001", "-u", "1337", "-m", "REDIRECT", "-i", "*", "-x", "",
        ];
        words.extend(more);
        words
    };
    let init = |image: &str, field: &str, words: Vec<&str>| {
        json!([{
            "name": "istio-init", "image": image, field: words,
            "securityContext": {"capabilities": {"add": ["NET_ADMIN"]}},
        }])
    };
    let mut pod = injected(name, uid);
    let spec = &mut pod["spec"];
    let (tag, dialect) = match number % 5 {
        0 => ("1.12.7", "1.8"),
        1 => {
            let words = flags(&["-b", "8000", "-d", "15020"]);
            spec["initContainers"] = init("docker.io/istio/proxy_init:1.1.3", "args", words);
            ("1.1.3", "1.1")
        }
        2 => {
            let mut words = flags(&["-z", "15006", "-b", "*", "-d", "15090,15020"]);
            words.insert(0, "istio-iptables");
            spec["initContainers"] = init("docker.io/istio/proxyv2:1.5.0", "command", words);
            ("1.5.0", "1.5")
        }
        3 => {
            let mut words = flags(&["-z", "15006", "-b", "*", "-d", "15090,15021,15020"]);
            words.insert(0, "istio-iptables");
            spec["initContainers"] = init("docker.io/istio/proxyv2:1.8.1", "args", words);
            ("1.8.1", "1.8")
        }
        _ => {
            spec["containers"][1]["restartPolicy"] = json!("Always");
            let sidecar = spec["containers"][1].take();
            spec["containers"] = json!([spec["containers"][0].take()]);
            spec["initContainers"] = json!([sidecar]);
            spec["initContainers"][0]["image"] = json!("docker.io/istio/proxyv2:1.28.0");
            return (pod, "current");
        }
    };
    spec["containers"][1]["image"] = json!(format!("docker.io/istio/proxyv2:{tag}"));
    (pod, dialect)
}

/// A node with a pod in a namespace that is opted in, and somebody outside who serves port 80.
fn labeled() -> Result<(Node, Actor, PodNet)> {
    let mut node = Node::new()?;
    node.label("Namespace", "shop", Some("enabled"))?;
    let outside = node.lab.outside().actor()?;
    outside.listen(&ROOT, at("0.0.0.0", 80))?;
    let pod = node
        .lab
        .pod("app", 2)?
        .under_kubelet(&node.lab, &node.lab.uid(1))?;
    Ok((node, outside, pod))
}

fn taken_by(client: &Actor) -> Result<u16> {
    let connected = client.dial(Dial::new(&APP, at(VIP, 80)))?;
    Ok(connected
        .map_err(|errno| anyhow!("errno {errno}"))?
        .accepted_by)
}

fn follow() -> Result<()> {
    let mut node = Node::new()?;
    let pod = node
        .lab
        .pod("app", 2)?
        .under_kubelet(&node.lab, &node.lab.uid(1))?;
    let outside = node.lab.outside().actor()?;
    outside.listen(&ROOT, at("0.0.0.0", 80))?;
    let sidecar = sidecar::start(&pod, &[80])?;
    let client = pod.actor()?;
    node.api.apply(injected("web", &node.lab.uid(1)))?;
    let name = "shop/web";
    node.is_taken(name, false)?;
    ensure!(taken_by(&client)? == 80);

    // Established connections are nobody's business.
    let held = client.hold(Dial::new(&APP, at(VIP, 80)))?;
    ensure!(held.is_ok(), "{held:?}");

    node.label("Namespace", "shop", Some("enabled"))?;
    node.is_taken(name, true)?;
    ensure!(taken_by(&client)? == 15001);
    let arrived = outside.dial(Dial::new(&ROOT, at("10.77.0.2", 80)))?;
    ensure!(arrived.is_ok_and(|arrived| arrived.accepted_by == 15006));
    let row = node.places().pod(name)?.context("the pod")?;
    ensure!(
        row["uid"] == node.lab.uid(1) && row["policy"]["dialect"] == "1.8",
        "{row}"
    );

    // The pod's own label wins where it says no.
    node.label("Pod", "web", Some("disabled"))?;
    node.is_taken(name, false)?;
    ensure!(taken_by(&client)? == 80);
    node.label("Pod", "web", None)?;
    node.is_taken(name, true)?;
    node.label("Namespace", "shop", None)?;
    node.is_taken(name, false)?;
    node.label("Pod", "web", Some("enabled"))?;
    node.is_taken(name, true)?;

    // Annotations.
    let annotate = |value: &str| {
        node.api.edit("Pod", "shop", "web", |pod| {
            pod["metadata"]["annotations"]["traffic.sidecar.istio.io/excludeOutboundPorts"] =
                json!(value);
        })
    };
    annotate("80")?;
    node.soon(name, |pod| {
        pod.is_some_and(|pod| pod["policy"]["excluded_outbound_ports"] == json!([80]))
    })?;
    ensure!(taken_by(&client)? == 80);
    annotate("http")?;
    node.soon(name, |pod| {
        pod.is_some_and(|pod| pod["reason"].to_string().contains("excludeOutboundPorts"))
    })?;
    ensure!(taken_by(&client)? == 80, "the last good policy stays");
    annotate("443")?;
    node.soon(name, |pod| {
        pod.is_some_and(|pod| {
            pod["reason"].is_null() && pod["policy"]["excluded_outbound_ports"] == json!([443])
        })
    })?;
    ensure!(taken_by(&client)? == 15001);
    ensure!(client.echo()? == 1, "the established connection lives");

    // Deleted by force: as long as it runs it is intercepted.
    node.api.delete("Pod", "shop", "web")?;
    node.soon(name, |pod| {
        pod.is_some_and(|pod| pod["reason"].to_string().contains("still runs"))
    })?;
    ensure!(taken_by(&client)? == 15001);
    drop((client, sidecar));
    node.soon(name, |pod| pod.is_none())?;
    events_were_sent(&node)?;
    for request in node.api.requests() {
        let request = (request.verb, request.group, request.resource);
        ensure!(USED.contains(&request), "RBAC does not allow {request:?}");
    }
    nothing_is_left(node.places())
}

fn events_were_sent(node: &Node) -> Result<()> {
    let has = |reason: &str, note: &str| {
        node.api.events().iter().any(|event| {
            event["reason"] == reason
                && event["note"]
                    .as_str()
                    .is_some_and(|text| text.contains(note))
                && event["regarding"]["name"] == "web"
                && event["regarding"]["uid"] == node.lab.uid(1)
        })
    };
    for (reason, note) in [
        ("Enrolled", "dialect 1.8"),
        ("Released", "\"disabled\""),
        ("PolicyRejected", "its last good policy stays"),
        ("PolicyChanged", "another policy"),
    ] {
        let start = Instant::now();
        while !has(reason, note) {
            ensure!(
                start.elapsed() < Duration::from_secs(3),
                "no Event {reason}: {:?}\n{}",
                node.api.events(),
                node.places().log()
            );
            thread::sleep(Duration::from_millis(20));
        }
    }
    Ok(())
}

fn outage() -> Result<()> {
    let mut node = Node::new()?;
    node.label("Namespace", "shop", Some("enabled"))?;
    let outside = node.lab.outside().actor()?;
    outside.listen(&ROOT, at("0.0.0.0", 80))?;
    let mut clients = Vec::new();
    let mut sidecars = Vec::new();
    for number in [2_u8, 3, 4] {
        let name = format!("web-{number}");
        let pod = node
            .lab
            .pod(&name, number)?
            .under_kubelet(&node.lab, &node.lab.uid(number.into()))?;
        sidecars.push(sidecar::start(&pod, &[])?);
        clients.push(pod.actor()?);
        node.api
            .apply(injected(&name, &node.lab.uid(number.into())))?;
        node.is_taken(&format!("shop/{name}"), true)?;
    }
    let all_redirected = |clients: &[Actor]| -> Result<()> {
        for client in clients {
            ensure!(taken_by(client)? == 15001, "a pod lost interception");
        }
        Ok(())
    };
    wait_for(|| Ok(told_enrolled(&node.api) == 3))?;
    // Connections that are cut, events that come twice, versions that are gone.
    node.api.bookmark();
    node.api.repeat_last();
    node.api.disconnect();
    node.api.compact();
    node.api.disconnect();
    thread::sleep(Duration::from_millis(500));
    all_redirected(&clients)?;
    let problem = |places: &Places| -> Result<String> {
        Ok(places.json(&["status", "-o", "json"])?["problems"].to_string())
    };

    // The API server goes; a pod is deleted, and the agent killed and started anew meanwhile.
    node.api.down();
    node.api.delete("Pod", "shop", "web-4")?;
    drop((clients.pop(), sidecars.pop()));
    wait_for(|| Ok(problem(node.places())?.contains("watch pods")))?;
    all_redirected(&clients)?;
    node.agent.end(Signal::SIGKILL)?;
    all_redirected(&clients)?;
    node.agent = Agent::spawn_with(
        node.lab.places(),
        &Extra {
            api: Some(&node.api),
            ..Extra::default()
        },
    )?;
    wait_for(|| Ok(problem(node.places())?.contains("watch pods")))?;
    let status = node.places().json(&["status", "-o", "json"])?;
    ensure!(status["agent"]["ready"] == false, "{status}");
    all_redirected(&clients)?;
    node.api.up();
    wait_for(|| Ok(problem(node.places())? == "[]"))?;
    node.places().wait_pod("shop/web-4", |pod| pod.is_none())?;
    wait_for(|| Ok(node.places().map("POD_BY_NETNS")?.len() == 2))?;
    all_redirected(&clients)?;
    // Slow answers change nothing but the time.
    node.api.delay(Duration::from_millis(300));
    node.api.disconnect();
    drop((clients.pop(), sidecars.pop()));
    node.api.delete("Pod", "shop", "web-3")?;
    node.places().wait_pod("shop/web-3", |pod| pod.is_none())?;
    node.places().wait_enrolled("shop/web-2")?;
    // The successor knew the pods already: nobody is told twice.
    ensure!(told_enrolled(&node.api) == 3, "{:?}", node.api.events());
    Ok(())
}

fn told_enrolled(api: &ApiServer) -> usize {
    let events = api.events();
    let told = events.iter().filter(|event| event["reason"] == "Enrolled");
    told.count()
}

fn wait_for(condition: impl Fn() -> Result<bool>) -> Result<()> {
    let start = Instant::now();
    loop {
        let now = condition();
        if matches!(now, Ok(true)) {
            return Ok(());
        }
        ensure!(start.elapsed() < Duration::from_secs(10), "still {now:?}");
        thread::sleep(Duration::from_millis(50));
    }
}

fn sandbox() -> Result<()> {
    let mut node = Node::new()?;
    node.label("Namespace", "shop", Some("enabled"))?;
    let outside = node.lab.outside().actor()?;
    outside.listen(&ROOT, at("0.0.0.0", 80))?;
    // The object is there before any process is.
    node.api.apply(injected("web", &node.lab.uid(1)))?;
    node.soon("shop/web", |pod| {
        pod.is_some_and(|pod| {
            pod["state"] == "waiting" && pod["reason"].to_string().contains("no process")
        })
    })?;
    let first = node
        .lab
        .pod("first", 2)?
        .under_kubelet(&node.lab, &node.lab.uid(1))?;
    let pause = sidecar::start(&first, &[])?;
    node.is_taken("shop/web", true)?;
    ensure!(taken_by(&first.actor()?)? == 15001);
    let inode = |places: &Places| -> Result<Value> {
        Ok(places.pod("shop/web")?.context("the pod")?["netns"]["inode"].clone())
    };
    let before = inode(node.places())?;
    // Another process keeps the namespace; the one it was found by goes.
    let other = first.actor()?;
    drop(pause);
    thread::sleep(Duration::from_millis(700));
    node.is_taken("shop/web", true)?;
    ensure!(inode(node.places())? == before);
    // A new sandbox under the same UID.
    drop(other);
    let second = node
        .lab
        .pod("second", 3)?
        .under_kubelet(&node.lab, &node.lab.uid(1))?;
    let _sidecar = sidecar::start(&second, &[])?;
    node.places().wait_pod("shop/web", |pod| {
        pod.is_some_and(|pod| pod["state"] == "enrolled" && pod["netns"]["inode"] != before)
    })?;
    ensure!(taken_by(&second.actor()?)? == 15001);
    ensure!(node.places().map("POD_BY_NETNS")?.len() == 1);
    // The same name, another pod.
    drop(_sidecar);
    node.api.delete("Pod", "shop", "web")?;
    node.api.apply(injected("web", &node.lab.uid(2)))?;
    let third = node
        .lab
        .pod("third", 4)?
        .under_kubelet(&node.lab, &node.lab.uid(2))?;
    let _sidecar = sidecar::start(&third, &[])?;
    node.places().wait_pod("shop/web", |pod| {
        pod.is_some_and(|pod| pod["state"] == "enrolled" && pod["uid"] == node.lab.uid(2))
    })?;
    ensure!(taken_by(&third.actor()?)? == 15001);
    Ok(())
}

/// The oldest process of a pod makes a network namespace of its own; another pod claims this one's
/// processes.
fn wanderer() -> Result<()> {
    let (mut node, _outside, pod) = labeled()?;
    let mut oldest = Command::new("ip");
    oldest
        .args(["netns", "exec", &pod.netns, "/usr/bin/python3", "-c"])
        .arg(
            "import ctypes, sys, time\nsys.stdin.read()\nctypes.CDLL(None).unshare(0x40000000)\ntime.sleep(1000)",
        )
        .stdin(Stdio::piped());
    let mut oldest = Idle(vec![die_with_parent(&mut oldest).spawn()?]);
    let pid = oldest.0[0].id();
    fs::write(pod.cgroup.join("cgroup.procs"), pid.to_string())?;
    let netns_of = |pid: u32| fs::read_link(format!("/proc/{pid}/ns/net"));
    let own = fs::read_link("/proc/self/ns/net")?;
    wait_for(|| Ok(netns_of(pid)? != own))?;
    let before = netns_of(pid)?;
    node.api.apply(injected("web", &node.lab.uid(1)))?;
    node.is_taken("shop/web", true)?;
    let _sidecar = sidecar::start(&pod, &[])?;
    let client = pod.actor()?;

    let mut evil = injected("a-evil", &node.lab.uid(2));
    evil["metadata"]["annotations"]["kubernetes.io/config.hash"] = json!(node.lab.uid(1));
    node.api.apply(evil)?;
    drop(oldest.0[0].stdin.take());
    wait_for(|| Ok(netns_of(pid)? != before))?;
    let settled = |node: &Node| -> Result<()> {
        thread::sleep(Duration::from_millis(1200));
        let rows = node.places().map("POD_BY_NETNS")?.len();
        let row = node.places().pod("shop/web")?.unwrap_or_default();
        let inode = format!("net:[{}]", row["netns"]["inode"]);
        ensure!(
            rows == 1 && before.as_os_str() == inode.as_str() && row["state"] == "enrolled",
            "{row}\n{}",
            node.places().log()
        );
        let evil = node.places().pod("shop/a-evil")?.unwrap_or_default();
        ensure!(evil["state"] == "waiting", "{evil}");
        ensure!(taken_by(&client)? == 15001);
        Ok(())
    };
    settled(&node)?;
    node.agent.end(Signal::SIGKILL)?;
    node.agent = start(&node.lab, &node.api)?;
    settled(&node)
}

fn migrated() -> Result<()> {
    let (node, outside, pod) = labeled()?;
    let _sidecar = sidecar::start(&pod, &[80])?;
    // istio-init has been here.
    let object = injected("web", &node.lab.uid(1));
    let manifest = node.lab.dir().join("web.json");
    fs::write(&manifest, object.to_string())?;
    let rules = node.places().output(&[
        "rules",
        "--manifest",
        &manifest.to_string_lossy(),
        "--format",
        "iptables",
    ])?;
    let file = node.lab.dir().join("rules");
    fs::write(&file, rules.stdout)?;
    run_words(&[
        "ip",
        "netns",
        "exec",
        &pod.netns,
        "iptables-restore",
        &file.to_string_lossy(),
    ])?;
    let client = pod.actor()?;
    ensure!(taken_by(&client)? == 15001, "the rules work");
    node.api.apply(object)?;
    node.is_taken("shop/web", true)?;
    let connected = client
        .dial(Dial::new(&APP, at(VIP, 80)))?
        .map_err(|errno| anyhow!("errno {errno}"))?;
    ensure!(
        connected.accepted_by == 15001
            && connected.server.original_v4 == Ok(at(VIP, 80))
            && connected.server.peer.ip() == pod.v4
            && connected.client.peer == at(VIP, 80),
        "{connected:?}"
    );
    for (to, by) in [
        ("10.77.0.2:80", 15006),
        ("10.77.0.2:15021", 15021),
        ("10.77.0.2:9", 15006),
    ] {
        let to = to.parse()?;
        let arrived = outside
            .dial(Dial::new(&ROOT, to))?
            .map_err(|errno| anyhow!("errno {errno}"))?;
        ensure!(arrived.accepted_by == by, "to {to}: {arrived:?}");
        ensure!(arrived.server.original_v4 == Ok(to), "to {to}: {arrived:?}");
    }
    let proxy = client.dial(Dial::new(&PROXY, at(VIP, 80)))?;
    ensure!(proxy.is_ok_and(|proxy| proxy.accepted_by == 80));
    let home = client
        .dial(Dial::new(&PROXY, at("10.77.0.2", 80)))?
        .map_err(|errno| anyhow!("errno {errno}"))?;
    ensure!(
        home.accepted_by == 15006 && home.server.original_v4 == Ok(at("10.77.0.2", 80)),
        "{home:?}"
    );
    Ok(())
}

fn not_taken() -> Result<()> {
    let node = Node::new()?;
    node.label("Namespace", "shop", Some("enabled"))?;
    type Edit = fn(&mut Value);
    let edits: [(&str, Edit, &str); 7] = [
        (
            "host",
            |pod| pod["spec"]["hostNetwork"] = json!(true),
            "host's network",
        ),
        (
            "bare",
            |pod| {
                pod["spec"]["containers"].as_array_mut().map(Vec::pop);
            },
            "no sidecar",
        ),
        (
            "gateway",
            |pod| {
                pod["spec"]["containers"][1]["args"] = json!(["proxy", "router", "--domain", "x"])
            },
            "gateway",
        ),
        (
            "refuses",
            |pod| pod["metadata"]["labels"]["sidecar.istio.io/inject"] = json!("false"),
            "sidecar.istio.io/inject",
        ),
        (
            "done",
            |pod| pod["status"]["phase"] = json!("Succeeded"),
            "completed",
        ),
        (
            "none",
            |pod| {
                pod["metadata"]["annotations"]["sidecar.istio.io/interceptionMode"] = json!("NONE")
            },
            "NONE",
        ),
        (
            "out",
            |pod| pod["metadata"]["labels"][LABEL] = json!("disabled"),
            "disabled",
        ),
    ];
    for (number, (name, edit, _)) in edits.iter().enumerate() {
        let mut pod = injected(name, &node.lab.uid(number));
        edit(&mut pod);
        node.api.apply(pod)?;
    }
    // A tenant cannot name a namespace.
    let mut tricky = injected("tricky", &node.lab.uid(20));
    tricky["metadata"]["annotations"]["sidetrack.dev/netns"] = json!("/proc/1/ns/net");
    node.api.apply(tricky)?;
    // Of another node.
    let mut elsewhere = injected("elsewhere", &node.lab.uid(21));
    elsewhere["spec"]["nodeName"] = json!("node-2");
    node.api.apply(elsewhere)?;
    let mut native = injected("native", &node.lab.uid(22));
    let sidecar = native["spec"]["containers"]
        .as_array_mut()
        .and_then(Vec::pop);
    let mut sidecar = sidecar.context("a sidecar")?;
    sidecar["restartPolicy"] = json!("Always");
    native["spec"]["initContainers"]
        .as_array_mut()
        .context("init containers")?
        .push(sidecar);
    node.api.apply(native)?;
    for (name, _, reason) in edits {
        node.soon(&format!("shop/{name}"), |pod| {
            pod.is_some_and(|pod| {
                pod["state"] == "not-taken" && pod["reason"].to_string().contains(reason)
            })
        })?;
    }
    for name in ["tricky", "native"] {
        node.soon(&format!("shop/{name}"), |pod| {
            pod.is_some_and(|pod| {
                pod["state"] == "waiting" && pod["reason"].to_string().contains("no process")
            })
        })?;
    }
    ensure!(node.places().pod("shop/elsewhere")?.is_none());
    Ok(())
}

fn health() -> Result<()> {
    let lab = Lab::new()?;
    let api = ApiServer::start(lab.dir())?;
    api.apply(namespace("shop", Some("enabled")))?;
    api.apply(injected("web", &lab.uid(1)))?;
    api.down();
    let port = std::net::TcpListener::bind("127.0.0.1:0")?
        .local_addr()?
        .port();
    let address = format!("127.0.0.1:{port}");
    let _agent = Agent::spawn_with(
        lab.places(),
        &Extra {
            api: Some(&api),
            arguments: &["--metrics-addr", &address],
            ..Extra::default()
        },
    )?;
    let ask = |path: &str| -> Result<(u16, String)> {
        let output = run_words(&[
            "curl",
            "-s",
            "-w",
            "%{http_code}",
            &format!("http://{address}{path}"),
        ])?;
        let (body, code) = output.split_at(output.len().saturating_sub(3));
        Ok((code.parse()?, body.to_owned()))
    };
    wait_for(|| Ok(ask("/readyz")?.0 == 503))?;
    ensure!(ask("/healthz")?.0 == 200);
    api.up();
    wait_for(|| Ok(ask("/readyz")?.0 == 200))?;
    let (code, metrics) = ask("/metrics")?;
    ensure!(code == 200, "{metrics}");
    for line in [
        "sidetrack_ready 1",
        "sidetrack_pods{state=\"waiting\"} 1",
        "sidetrack_problems 0",
    ] {
        ensure!(
            metrics.lines().any(|known| known == line),
            "no {line}:\n{metrics}"
        );
    }
    ensure!(
        !metrics.contains("shop") && !metrics.contains("web"),
        "{metrics}"
    );
    Ok(())
}

/// As the container runtime starts the agent: root, with a handful of capabilities.
fn few_capabilities() -> Result<()> {
    let capabilities = capabilities()?;
    let mut lab = Lab::new()?;
    lab.add_outside(VIP)?;
    let api = ApiServer::start(lab.dir())?;
    api.apply(namespace("shop", Some("enabled")))?;
    let outside = lab.outside().actor()?;
    outside.listen(&ROOT, at("0.0.0.0", 80))?;
    // One that runs already, with listeners to take over; and one with users of its own.
    let plain = lab.pod("plain", 2)?.under_kubelet(&lab, &lab.uid(1))?;
    let own = lab
        .pod_with_own_users("own", 3)?
        .under_kubelet(&lab, &lab.uid(2))?;
    // A process that is the proxy's from its start: its descriptors are not root's to look at.
    let mut real = Command::new("ip");
    real.args(["netns", "exec", &plain.netns, "setpriv", "--reuid=1337"])
        .args(["--regid=1337", "--clear-groups", "/usr/bin/python3", "-c"])
        .arg("import socket, time\ns = socket.create_server(('0.0.0.0', 15006))\ntime.sleep(1000)");
    let real = Idle(vec![die_with_parent(&mut real).spawn()?]);
    fs::write(
        plain.cgroup.join("cgroup.procs"),
        real.0[0].id().to_string(),
    )?;
    let listens = || run_words(&["ip", "netns", "exec", &plain.netns, "ss", "-Hltn"]);
    wait_for(|| Ok(listens()?.contains(":15006")))?;
    let _app = own.actor()?;
    api.apply(injected("plain", &lab.uid(1)))?;
    api.apply(injected("own", &lab.uid(2)))?;
    let extra = Extra {
        api: Some(&api),
        capabilities: Some(&capabilities),
        ..Extra::default()
    };
    let _agent = Agent::start_with(lab.places(), &extra)?;
    for name in ["shop/plain", "shop/own"] {
        lab.places().wait_enrolled(name)?;
    }
    let row = lab.places().pod("shop/plain")?.context("the pod")?;
    ensure!(row["listener"] == true, "{}", lab.places().log());
    // Each of them is needed: the agent does not start, or cannot enroll.
    for missing in &capabilities {
        let fewer: Vec<String> = capabilities
            .iter()
            .filter(|one| *one != missing)
            .cloned()
            .collect();
        let lab = Lab::new()?;
        let extra = Extra {
            api: Some(&api),
            capabilities: Some(&fewer),
            ..Extra::default()
        };
        let enrolled = Agent::start_with(lab.places(), &extra).is_ok_and(|agent| {
            thread::sleep(Duration::from_millis(700));
            let listening = agent.places.pod("shop/plain");
            if !listening.is_ok_and(|pod| pod.is_some_and(|pod| pod["listener"] == true)) {
                return false;
            }
            let pods = ["shop/plain", "shop/own"].map(|name| agent.places.pod(name));
            pods.into_iter().all(|pod| {
                pod.is_ok_and(|pod| {
                    pod.is_some_and(|pod| pod["state"] == "enrolled" && pod["reason"].is_null())
                })
            })
        });
        ensure!(!enrolled, "{missing} is not needed");
    }
    Ok(())
}

fn uninstall() -> Result<()> {
    let mut lab = Lab::new()?;
    let api = ApiServer::start(lab.dir())?;
    api.apply(namespace("shop", Some("enabled")))?;
    let daemonset = json!({
        "kind": "DaemonSet", "apiVersion": "apps/v1",
        "metadata": {"name": "sidetrack", "namespace": "sidetrack-system", "uid": "uid-ds"},
    });
    api.apply(daemonset)?;
    let pod = lab.pod("app", 2)?.under_kubelet(&lab, &lab.uid(1))?;
    let _sidecar = sidecar::start(&pod, &[])?;
    api.apply(injected("web", &lab.uid(1)))?;
    let extra = Extra {
        api: Some(&api),
        arguments: &["--daemonset", "sidetrack-system/sidetrack"],
        ..Extra::default()
    };
    let pins = lab.places().bpffs.join("sidetrack");
    // An upgrade: the pod of the DaemonSet goes, the DaemonSet stays.
    let mut agent = Agent::start_with(lab.places(), &extra)?;
    lab.places().wait_enrolled("shop/web")?;
    agent.end(Signal::SIGTERM)?;
    ensure!(pins.exists(), "an upgrade leaves interception in place");
    let mut agent = Agent::start_with(lab.places(), &extra)?;
    lab.places().wait_enrolled("shop/web")?;
    api.delete("DaemonSet", "sidetrack-system", "sidetrack")?;
    wait_for(|| Ok(lab.places().log().contains("DaemonSet is deleted")))?;
    agent.end(Signal::SIGTERM)?;
    ensure!(!pins.exists(), "{}", lab.places().log());
    Ok(())
}

/// Processes that do nothing; dropping them ends them.
struct Idle(Vec<Child>);

impl Drop for Idle {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
        }
        for child in &mut self.0 {
            let _ = child.wait();
        }
    }
}

fn many() -> Result<()> {
    const PODS: usize = 250;
    let mut lab = Lab::new()?;
    let names = lab.bare_namespaces(PODS)?;
    let api = ApiServer::start(lab.dir())?;
    api.apply(namespace("shop", Some("enabled")))?;
    let mut idle = Idle(Vec::new());
    let mut dialects = HashMap::new();
    for (number, netns) in names.iter().enumerate() {
        let mut command = Command::new("ip");
        command
            .args(["netns", "exec", netns, "sleep", "1000"])
            .stdout(Stdio::null());
        let child = die_with_parent(&mut command).spawn()?;
        let cgroup = lab.kubelet_cgroup(&lab.uid(number))?;
        fs::write(cgroup.join("cgroup.procs"), child.id().to_string())?;
        idle.0.push(child);
        let (pod, dialect) = of_every_version(number, &format!("web-{number}"), &lab.uid(number));
        dialects.insert(format!("web-{number}"), dialect);
        api.apply(pod)?;
    }
    let enrolled = |places: &Places, wanted: usize| -> Result<Duration> {
        let start = Instant::now();
        loop {
            let status = places.json(&["status", "-o", "json"])?;
            if status["pods"]["enrolled"] == wanted {
                return Ok(start.elapsed());
            }
            ensure!(
                start.elapsed() < Duration::from_secs(20),
                "{}",
                status["pods"]
            );
            thread::sleep(Duration::from_millis(20));
        }
    };
    let start_of_agent = Instant::now();
    let agent = start(&lab, &api)?;
    let places = lab.places();
    enrolled(places, PODS)?;
    let took = start_of_agent.elapsed();
    let (resident, _) = agent.memory()?;
    for row in places
        .json(&["pods", "-o", "json"])?
        .as_array()
        .into_iter()
        .flatten()
    {
        let name = row["name"].as_str().unwrap_or_default();
        let dialect = dialects.get(name).context("a pod of ours")?;
        ensure!(row["policy"]["dialect"] == *dialect, "{row}");
    }
    // Looks for listeners, which these pods do not have, fall into some of these seconds.
    let mut seconds = Vec::new();
    for _ in 0..9 {
        let before = agent.cpu_time()?;
        thread::sleep(Duration::from_secs(1));
        seconds.push(agent.cpu_time()?.saturating_sub(before));
    }
    seconds.sort();
    let idle_cpu = seconds[seconds.len() / 2].as_secs_f64() * 100.0;

    let edit = |label: Option<&str>| {
        api.edit("Namespace", "", "shop", |namespace| {
            namespace["metadata"]["labels"] =
                label.map_or(json!({}), |label| json!({LABEL: label}));
        })
    };
    edit(None)?;
    let off = enrolled(places, 0)?;
    edit(Some("enabled"))?;
    let on = enrolled(places, PODS)?;
    api.edit("Pod", "shop", "web-7", |pod| {
        pod["metadata"]["annotations"]["traffic.sidecar.istio.io/excludeOutboundPorts"] =
            json!("80");
    })?;
    let annotated = places.wait_pod("shop/web-7", |pod| {
        pod.is_some_and(|pod| pod["policy"]["excluded_outbound_ports"] == json!([80]))
    })?;
    drop(idle);
    for number in 0..PODS {
        api.delete("Pod", "shop", &format!("web-{number}"))?;
    }
    let deleted = enrolled(places, 0)?;
    println!(
        "{PODS} pods: enrolled {took:.2?} after the agent's start; labels off {off:.2?}, on {on:.2?}; annotation {annotated:.2?}; all deleted {deleted:.2?}; resident {resident} KiB; idle CPU {idle_cpu:.2} %"
    );
    // Wide bounds: a busy machine is no failure, ten times as long is.
    ensure!(
        took < Duration::from_secs(20) && resident < 60 * 1024,
        "{took:?}, {resident} KiB"
    );
    nothing_is_left(places)
}
