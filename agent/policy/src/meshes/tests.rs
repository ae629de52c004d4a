use serde_json::{Value, json};
use sidetrack_common::addr::Family;

use super::*;
use crate::{
    dialect::Dialect,
    fixture::of_pod,
    mesh::{Enroll, Mesh},
    policy::{DnsCapture, InboundPorts},
    rules,
    select::{Rejected, Skipped, Wanted, wanted},
};

fn facts(pod: Value) -> PodFacts {
    serde_json::from_value(pod).expect("a pod")
}

fn chosen(pod: &PodFacts) -> Wanted {
    wanted(pod, None, &Mesh::new(Enroll::Injected))
}

/// Problems of a pod's settings, as text.
fn problems(pod: Value) -> String {
    let errors = of_pod(&facts(pod)).expect_err("a problem");
    let texts: Vec<String> = errors.iter().map(ToString::to_string).collect();
    texts.join("; ")
}

fn lines(policy: &Policy, family: Family) -> Vec<String> {
    let lines = rules::all(policy, family);
    lines.iter().map(rules::Line::command).collect()
}

/// As Linkerd's injector makes it, with a native sidecar.
fn linkerd(init: Option<&[&str]>, annotations: Value) -> Value {
    let proxy = json!({
        "name": "linkerd-proxy", "restartPolicy": "Always", "image": "cr.l5d.io/linkerd/proxy:edge-26.8.3",
        "env": [
            {"name": "LINKERD2_PROXY_INBOUND_LISTEN_ADDR", "value": "0.0.0.0:4143"},
            {"name": "LINKERD2_PROXY_ADMIN_LISTEN_ADDR", "value": "0.0.0.0:4191"},
            {"name": "LINKERD2_PROXY_CONTROL_LISTEN_ADDR", "value": "0.0.0.0:4190"},
            {"name": "LINKERD2_PROXY_OUTBOUND_LISTEN_ADDRS", "value": "127.0.0.1:4140"},
        ],
    });
    let first = match init {
        Some(args) => json!({"name": "linkerd-init", "args": args}),
        None => json!({"name": "linkerd-network-validator"}),
    };
    json!({
        "metadata": {"annotations": annotations},
        "spec": {"initContainers": [first, proxy], "containers": [{"name": "app"}]},
    })
}

const LINKERD_INIT: [&str; 11] = [
    "--ipv6=false",
    "--incoming-proxy-port",
    "4143",
    "--outgoing-proxy-port",
    "4140",
    "--proxy-uid",
    "2102",
    "--inbound-ports-to-ignore",
    "4190,4191,4567,4568",
    "--outbound-ports-to-ignore",
    "4567,4568",
];

#[test]
fn linkerd_init_comes_to_its_own_rules() {
    let policy = of_pod(&facts(linkerd(Some(&LINKERD_INIT), json!({})))).expect("a policy");
    assert_eq!(policy.dialect, Dialect::Linkerd);
    assert_eq!(
        lines(&policy, Family::V4),
        [
            "-A PREROUTING -m comment --comment \"proxy-init/install-proxy-init-prerouting\" -j PROXY_INIT_REDIRECT",
            "-A OUTPUT -m comment --comment \"proxy-init/install-proxy-init-output\" -j PROXY_INIT_OUTPUT",
            "-A PROXY_INIT_OUTPUT -m owner --uid-owner 2102 -m comment --comment \"proxy-init/ignore-proxy-user-id\" -j RETURN",
            "-A PROXY_INIT_OUTPUT -o lo -m comment --comment \"proxy-init/ignore-loopback\" -j RETURN",
            "-A PROXY_INIT_OUTPUT -p tcp -m multiport --dports 4567,4568 -m comment --comment \"proxy-init/ignore-port-4567,4568\" -j RETURN",
            "-A PROXY_INIT_OUTPUT -p tcp -m comment --comment \"proxy-init/redirect-all-outgoing-to-proxy-port\" -j REDIRECT --to-ports 4140",
            "-A PROXY_INIT_REDIRECT -p tcp -m multiport --dports 4190,4191,4567,4568 -m comment --comment \"proxy-init/ignore-port-4190,4191,4567,4568\" -j RETURN",
            "-A PROXY_INIT_REDIRECT -p tcp -m comment --comment \"proxy-init/redirect-all-incoming-to-proxy-port\" -j REDIRECT --to-ports 4143",
        ]
    );
    assert_eq!(lines(&policy, Family::V6), Vec::<String>::new());
    assert!(!policy.captures_v6(["fd00::1".parse().expect("an address")].into_iter()));
}

#[test]
fn linkerd_without_init_is_read_as_its_cni_plugin_does() {
    let annotations = json!({
        "config.linkerd.io/skip-inbound-ports": "25,8000-9000, 26,nonsense,0,9:10,7-",
        "config.linkerd.io/skip-outbound-ports": "3306",
        "config.linkerd.io/skip-subnets": "10.1.0.0/16",
        // The plugin does not read it.
        "config.linkerd.io/inbound-port": "9999",
    });
    let policy = of_pod(&facts(linkerd(None, annotations))).expect("a policy");
    let ports = |spans: &[crate::Span]| spans.iter().map(ToString::to_string).collect::<Vec<_>>();
    assert_eq!(policy.inbound_port, 4143);
    assert_eq!(
        ports(&policy.exclusions.inbound_ports),
        ["4190", "4191", "25", "8000-9000", "0"]
    );
    // What proxy-init cannot read has no effect there either.
    let ignored = &policy.remarks[0];
    let expected =
        "\" 26\", \"nonsense\", \"9:10\", ... in annotation config.linkerd.io/skip-inbound-ports";
    assert!(ignored.starts_with(expected), "{ignored}");
    assert_eq!(ports(&policy.exclusions.outbound_ports), ["3306"]);
    assert_eq!(policy.exclusions.sources.len(), 1);
    assert!(policy.ipv4_only);
}

/// The proxies of the control plane ask the API server before they can serve.
#[test]
fn the_api_server_is_left_alone_in_linkerds_control_plane() {
    let skips = |component: Option<&str>| {
        let mut pod = linkerd(
            None,
            json!({"config.linkerd.io/skip-outbound-ports": "3306"}),
        );
        if let Some(component) = component {
            pod["metadata"]["labels"] = json!({"linkerd.io/control-plane-component": component});
        }
        let policy = of_pod(&facts(pod)).expect("a policy");
        let ports = policy.exclusions.outbound_ports.iter();
        ports.map(ToString::to_string).collect::<Vec<_>>().join(",")
    };
    assert_eq!(skips(Some("identity")), "3306,443,6443");
    assert_eq!(skips(Some("")), "3306");
    assert_eq!(skips(None), "3306");
    // With linkerd-init its arguments are complete.
    let mut pod = linkerd(Some(&[]), json!({}));
    pod["metadata"]["labels"] = json!({"linkerd.io/control-plane-component": "identity"});
    let policy = of_pod(&facts(pod)).expect("a policy");
    assert!(policy.exclusions.outbound_ports.is_empty());
}

/// An annotation, what linkerd-proxy runs as, or the chart's user, which is an assumption. Only proxy-init says that there
/// is no user.
#[test]
fn the_user_of_linkerd_proxy() {
    let of = |init: Option<&[&str]>, runs_as: Value, pods: Value, annotations: Value| {
        let mut pod = linkerd(init, annotations);
        pod["spec"]["initContainers"][1]["securityContext"] = runs_as;
        pod["spec"]["securityContext"] = pods;
        let policy = of_pod(&facts(pod)).expect("a policy");
        (policy.proxy_uids, policy.proxy_gids, policy.remarks.len())
    };
    let none = || Value::Null;
    let runs_as = json!({"runAsUser": 3000, "runAsGroup": 3001});
    let user = json!({"runAsUser": 3000});
    let uid = json!({"config.linkerd.io/proxy-uid": "4000", "config.linkerd.io/proxy-gid": "-1"});
    for (runs_as, pods, annotations, expected) in [
        (none(), none(), json!({}), (vec![2102], vec![], 1)),
        (user.clone(), none(), json!({}), (vec![3000], vec![], 0)),
        (
            runs_as.clone(),
            none(),
            json!({}),
            (vec![3000], vec![3001], 0),
        ),
        (
            none(),
            runs_as.clone(),
            json!({}),
            (vec![3000], vec![3001], 0),
        ),
        // The group of the app's pod is not the sidecar's.
        (
            user,
            json!({"runAsGroup": 5}),
            json!({}),
            (vec![3000], vec![], 0),
        ),
        (runs_as.clone(), none(), uid, (vec![4000], vec![], 1)),
        (
            none(),
            none(),
            json!({"config.linkerd.io/proxy-uid": ""}),
            (vec![2102], vec![], 1),
        ),
    ] {
        let case = format!("{runs_as} {pods} {annotations}");
        assert_eq!(of(None, runs_as, pods, annotations), expected, "{case}");
    }
    let init = ["--proxy-uid", "2102"];
    let by_init = of(Some(&init), none(), none(), json!({}));
    assert_eq!(by_init, (vec![2102], vec![], 0));
    assert_eq!(
        of(Some(&[]), runs_as, none(), json!({})),
        (vec![], vec![], 1)
    );
}

#[test]
fn lists_of_proxy_init_that_are_given_again_are_continued() {
    let args = [
        "--inbound-ports-to-ignore=0-79",
        "--inbound-ports-to-ignore",
        "80, 443",
        "--outbound-ports-to-ignore=0-65535",
        "--subnets-to-ignore=10.0.0.0/8",
        "--subnets-to-ignore=10.1.0.0/16",
    ];
    let policy = of_pod(&facts(linkerd(Some(&args), json!({})))).expect("a policy");
    let rules = lines(&policy, Family::V4).join("\n");
    for part in [
        "--dports 0:79,80 ",
        "--dports 0:65535 ",
        "-s 10.0.0.0/8 ",
        "-s 10.1.0.0/16 ",
    ] {
        assert!(rules.contains(part), "{part} in {rules}");
    }
    assert!(policy.remarks[0].starts_with("\" 443\" in argument --inbound-ports-to-ignore"));
    let redirected = ["-r", "80", "--ports-to-redirect=443,8080"];
    let policy = of_pod(&facts(linkerd(Some(&redirected), json!({})))).expect("a policy");
    let expected = crate::exclusions::spans([80, 443, 8080]);
    assert_eq!(policy.inbound, InboundPorts::Only(expected));
    let bare = problems(linkerd(
        Some(&["--subnets-to-ignore", "10.0.0.1"]),
        json!({}),
    ));
    assert!(bare.contains("\"10.0.0.1\" is not a CIDR"), "{bare}");
}

#[test]
fn more_ports_of_linkerd_than_are_kept_reject_the_pod() {
    let listed = |most: usize| {
        let ports: Vec<String> = (1..=most).map(|port| port.to_string()).collect();
        format!("nonsense,{}", ports.join(","))
    };
    for (args, annotation) in [
        (Some("--inbound-ports-to-ignore"), "other"),
        (Some("--outbound-ports-to-ignore"), "other"),
        (None, "config.linkerd.io/skip-inbound-ports"),
        (None, "config.linkerd.io/skip-outbound-ports"),
    ] {
        let pod = |text: &str| {
            let args = args.map(|flag| [flag, text]);
            let args = args.as_ref().map(<[&str; 2]>::as_slice);
            linkerd(args, json!({ annotation: text }))
        };
        of_pod(&facts(pod(&listed(1000)))).expect("a policy");
        let problem = problems(pod(&listed(1001)));
        assert!(problem.contains("write at most 1000 entries"), "{problem}");
    }
}

#[test]
fn pods_that_program_iptables_name_the_init_container() {
    let with = |pod: Value, init: &str| {
        let mut pod = pod;
        let inits = pod["spec"]["initContainers"].as_array_mut();
        inits
            .expect("init containers")
            .push(json!({ "name": init }));
        facts(pod).iptables_init()
    };
    let linkerd = || linkerd(None, json!({}));
    assert_eq!(with(linkerd(), "linkerd-init"), Some("linkerd-init"));
    assert_eq!(with(kuma(None, json!({})), "kuma-init"), Some("kuma-init"));
    // That of a mesh whose sidecar the pod has not.
    assert_eq!(with(linkerd(), "istio-init"), None);
    assert_eq!(with(consul("{}"), "consul-connect-inject-init"), None);
}

#[test]
fn a_subnet_of_linkerd_must_be_one() {
    let args = ["--subnets-to-ignore", "10.1.0.0/16,everything"];
    let problem = problems(linkerd(Some(&args), json!({})));
    assert!(
        problem.contains("argument --subnets-to-ignore of linkerd-init"),
        "{problem}"
    );
    assert!(
        problem.contains("\"everything\" is not a CIDR"),
        "{problem}"
    );
}

/// As Kuma's injector makes it.
fn kuma(init: Option<&[&str]>, mut annotations: Value) -> Value {
    annotations["kuma.io/sidecar-injected"] = "true".into();
    let init = init
        .map(|args| json!({"name": "kuma-init", "command": ["/usr/bin/kumactl"], "args": args}));
    let sidecar = json!({"name": "kuma-sidecar", "restartPolicy": "Always"});
    let init: Vec<Value> = init.into_iter().chain([sidecar]).collect();
    json!({
        "metadata": {"annotations": annotations},
        "spec": {"initContainers": init, "containers": [{"name": "app"}]},
    })
}

const KUMA_3: &str = "
kumaDPUser: '5678'
ipFamilyMode: dualstack
redirect:
  dns: {enabled: true, captureAll: true, port: 15053}
  inbound: {enabled: true, port: 15006, excludePorts: [9001]}
  outbound:
    enabled: true
    port: 15001
    excludePortsForUIDs: ['tcp:53,3000-5000:106-108', 'udp:53:106']
    excludePortsForIPs: ['10.1.0.0/16', 'fd10::1']
";

#[test]
fn kuma_3_comes_to_its_own_rules() {
    let pod = kuma(
        None,
        json!({"traffic.kuma.io/transparent-proxy-config": KUMA_3}),
    );
    let policy = of_pod(&facts(pod)).expect("a policy");
    let nat: Vec<String> = lines(&policy, Family::V4);
    let nat: Vec<&str> = nat
        .iter()
        .map(String::as_str)
        .filter(|line| !line.starts_with("-t"))
        .collect();
    assert_eq!(
        nat,
        [
            "-A PREROUTING -p tcp -j KUMA_MESH_INBOUND",
            "-A OUTPUT -p tcp -m multiport --dports 53,3000:5000 -m owner --uid-owner 106-108 -j RETURN",
            "-A OUTPUT -p udp -m multiport --dports 53 -m owner --uid-owner 106 -j RETURN",
            "-A OUTPUT -d 10.1.0.0/16 -j RETURN",
            "-A OUTPUT -p udp -m udp --dport 53 -m owner --uid-owner 5678 -j RETURN",
            "-A OUTPUT -p udp -m udp --dport 53 -j REDIRECT --to-ports 15053",
            "-A OUTPUT -p tcp -m tcp --dport 53 -m owner ! --uid-owner 5678 -j RETURN",
            "-A OUTPUT -p tcp -j KUMA_MESH_OUTBOUND",
            "-A KUMA_MESH_INBOUND -p tcp -m tcp --dport 9001 -j RETURN",
            "-A KUMA_MESH_INBOUND -p tcp -j KUMA_MESH_INBOUND_REDIRECT",
            "-A KUMA_MESH_OUTBOUND -s 127.0.0.6/32 -o lo -j RETURN",
            "-A KUMA_MESH_OUTBOUND ! -d 127.0.0.1/32 -o lo -p tcp -m owner --uid-owner 5678 -j KUMA_MESH_INBOUND_REDIRECT",
            "-A KUMA_MESH_OUTBOUND -o lo -p tcp -m owner ! --uid-owner 5678 -j RETURN",
            "-A KUMA_MESH_OUTBOUND -m owner --uid-owner 5678 -j RETURN",
            "-A KUMA_MESH_OUTBOUND -d 127.0.0.1/32 -j RETURN",
            "-A KUMA_MESH_OUTBOUND -j KUMA_MESH_OUTBOUND_REDIRECT",
            "-A KUMA_MESH_INBOUND_REDIRECT -p tcp -j REDIRECT --to-ports 15006",
            "-A KUMA_MESH_OUTBOUND_REDIRECT -p tcp -j REDIRECT --to-ports 15001",
        ]
    );
}

/// With the addresses of a pod in an IPv4 cluster, where the kernel gives each interface a link-local one.
#[test]
fn what_ipv6_depends_on() {
    let v6_with = |pod: Value, addresses: &[&str]| {
        let policy = of_pod(&facts(pod)).expect("a policy");
        let addresses = addresses.iter().map(|addr| addr.parse().expect("one"));
        policy.captures_v6(addresses)
    };
    let (lo, eth) = (["127.0.0.1", "::1"], ["10.0.0.1", "fe80::1"]);
    let all = [&lo[..], &eth[..]].concat();
    let kuma = || kuma(None, json!({}));
    assert!(v6_with(kuma(), &all));
    assert!(!v6_with(kuma(), &[&lo[..], &eth[..1], &["::6"]].concat()));
    assert!(v6_with(linkerd(Some(&[]), json!({})), &lo));
    assert!(!v6_with(linkerd(Some(&["--ipv6=false"]), json!({})), &all));
    let istio = json!({"spec": {"containers": [{"name": "istio-proxy"}]}});
    assert!(!v6_with(istio, &all));
}

#[test]
fn kuma_2_is_read_from_arguments_or_annotations() {
    let args = [
        "install",
        "transparent-proxy",
        "--exclude-inbound-ports=9001",
        "--redirect-all-dns-traffic",
        "--exclude-outbound-ports-for-uids",
        "udp:53:106",
        "--exclude-outbound-ports-for-uids=107",
        "--verbose",
    ];
    let policy = of_pod(&facts(kuma(Some(&args), json!({})))).expect("a policy");
    assert_eq!(
        policy.inbound,
        InboundPorts::AllExcept(crate::spans(vec![9001]))
    );
    assert_eq!(policy.dns, DnsCapture::All);
    // The second is for both protocols.
    assert_eq!(policy.exclusions.owners.len(), 3);
    let annotations = json!({
        "kuma.io/sidecar-uid": "6000",
        "kuma.io/builtin-dns": "enabled",
        "kuma.io/builtin-dns-port": "15054",
        "kuma.io/transparent-proxying-ip-family-mode": "ipv4",
        "traffic.kuma.io/exclude-outbound-ports": "3306,6379",
    });
    let policy = of_pod(&facts(kuma(None, annotations))).expect("a policy");
    assert_eq!(policy.proxy_uids, [6000]);
    assert_eq!(
        (policy.dns.clone(), policy.dns_port),
        (DnsCapture::All, 15054)
    );
    assert!(policy.ipv4_only);
    assert_eq!(policy.excluded_outbound_ports, [3306, 6379]);
}

/// Its text is among the arguments, or it is a file: that of the annotation, and one of a ConfigMap of the pod's author.
#[test]
fn the_configuration_of_kuma_init() {
    let text = "redirect:\n  dns:\n    enabled: true\n  outbound:\n    excludePorts: [3306]\n";
    let later = "redirect: {outbound: {excludePorts: [6379]}}";
    let args = [
        "--config",
        text,
        "--config",
        later,
        "--redirect-dns-port=15054",
    ];
    let policy = of_pod(&facts(kuma(Some(&args), json!({})))).expect("a policy");
    let dns = (policy.dns.clone(), policy.dns_port);
    assert_eq!(dns, (DnsCapture::All, 15054));
    assert_eq!(policy.excluded_outbound_ports, [6379]);

    let file = "--config=/tmp/transparent-proxy/base/config.yaml";
    let other = "--config=/tmp/transparent-proxy/custom/config.yaml";
    let annotation = || json!({"traffic.kuma.io/transparent-proxy-config": text});
    let policy = of_pod(&facts(kuma(Some(&[file]), annotation()))).expect("a policy");
    assert_eq!(policy.excluded_outbound_ports, [3306]);
    for pod in [
        kuma(Some(&[file, other]), annotation()),
        kuma(Some(&[other]), json!({})),
    ] {
        let problem = problems(pod);
        let named = "argument --config of kuma-init is \"/tmp/transparent-proxy/custom/";
        assert!(
            problem.contains(named) && problem.contains("not in the pod's manifest"),
            "{problem}"
        );
    }
}

/// What the CNI plugin of Kuma 2 reads, and what it takes for an annotation that is absent.
#[test]
fn kuma_2_without_init_is_read_as_its_cni_plugin_does() {
    let of = |annotations: Value| of_pod(&facts(kuma(None, annotations))).expect("a policy");
    let port = |value: &str| json!({"kuma.io/application-probe-proxy-port": value});
    let bare = of(json!({}));
    assert_eq!(
        bare.inbound,
        InboundPorts::AllExcept(crate::spans(vec![9901, 9001]))
    );
    assert_eq!(bare.excluded_outbound_ports, [9901]);
    assert_eq!(
        of(port("9009")).inbound,
        InboundPorts::AllExcept(crate::spans(vec![9901, 9009]))
    );
    assert_eq!(
        of(port("0")).inbound,
        InboundPorts::AllExcept(crate::spans(vec![9901]))
    );
    let none = of(json!({
        "traffic.kuma.io/exclude-inbound-ports": "",
        "traffic.kuma.io/exclude-outbound-ports": "",
    }));
    assert_eq!(
        none.inbound,
        InboundPorts::AllExcept(crate::spans(vec![9001]))
    );
    assert_eq!(none.excluded_outbound_ports, [0; 0]);
    for (annotation, expected) in [
        ("traffic.kuma.io/exclude-inbound-ips", "-s 10.1.0.0/16"),
        ("traffic.kuma.io/exclude-outbound-ips", "-d 10.1.0.0/16"),
    ] {
        let excluding = lines(&of(json!({annotation: "10.1.0.0/16"})), Family::V4);
        assert!(
            excluding.iter().any(|line| line.contains(expected)),
            "{annotation}: {excluding:?}"
        );
    }
    for (value, inbound) in [
        ("enabled", InboundPorts::None),
        ("True", InboundPorts::None),
        ("disabled", bare.inbound.clone()),
    ] {
        let policy = of(json!({
            "kuma.io/gateway": value, "kuma.io/transparent-proxying-inbound-port": "15055",
        }));
        assert_eq!(
            (policy.inbound, policy.inbound_port),
            (inbound, 15055),
            "{value}"
        );
    }
    let zero = json!({
        "kuma.io/gateway": "enabled", "kuma.io/transparent-proxying-inbound-port": "0",
    });
    assert_eq!(of(zero).inbound_port, 15006);
    let builtin = problems(kuma(None, json!({"kuma.io/gateway": "builtin"})));
    assert!(builtin.contains("write enabled or disabled"), "{builtin}");
    for (value, dns) in [("True", DnsCapture::All), ("Disabled", DnsCapture::Off)] {
        let annotations =
            json!({"kuma.io/builtin-dns": value, "kuma.io/builtin-dns-port": "25053"});
        assert_eq!(of(annotations).dns, dns, "{value}");
    }
}

#[test]
fn the_user_of_kuma_sidecar() {
    let of = |runs_as: Value, annotations: Value| {
        let mut pod = kuma(None, annotations);
        pod["spec"]["initContainers"][0]["securityContext"] = runs_as;
        let policy = of_pod(&facts(pod)).expect("a policy");
        (policy.proxy_uids, policy.remarks.len())
    };
    let user = json!({"runAsUser": 6000});
    let uid = json!({"kuma.io/sidecar-uid": "6000"});
    assert_eq!(of(Value::Null, json!({})), (vec![5678], 1));
    assert_eq!(of(user.clone(), json!({})), (vec![6000], 0));
    assert_eq!(of(Value::Null, uid), (vec![6000], 0));
    // The rules are Kuma's, and do not fit.
    let other = json!({"kuma.io/sidecar-uid": "7000"});
    assert_eq!(of(user, other), (vec![7000], 1));
}

/// Kuma writes port 0 where DNS is off.
#[test]
fn the_dns_port_of_kuma_counts_with_dns() {
    let of = |enabled: bool| {
        let text = format!("redirect: {{dns: {{enabled: {enabled}, port: 0}}}}");
        kuma(
            None,
            json!({"traffic.kuma.io/transparent-proxy-config": text}),
        )
    };
    assert_eq!(
        of_pod(&facts(of(false))).expect("a policy").dns,
        DnsCapture::Off
    );
    assert!(problems(of(true)).contains("redirect.dns.port in annotation"));
}

fn kuma_3(config: &str) -> Value {
    kuma(
        None,
        json!({"traffic.kuma.io/transparent-proxy-config": config}),
    )
}

/// Without servers of a family Kuma has no rules for its queries.
#[test]
fn zones_of_kuma_follow_the_servers() {
    let raw = |config: &str, family, servers: &[&str]| {
        let servers: Vec<_> = servers.iter().map(|it| it.parse().expect("one")).collect();
        let policy = of_pod(&facts(kuma_3(config))).expect("a policy");
        let all = lines(&policy.with_dns_servers(Some(&servers)), family);
        all.into_iter()
            .filter(|line| line.starts_with("-t raw"))
            .collect::<Vec<_>>()
    };
    let some = "redirect: {dns: {enabled: true, captureAll: false}}";
    let all = "redirect: {dns: {enabled: true, captureAll: true}}";
    let one = "redirect: {dns: {enabled: true, captureAll: true, skipConntrackZoneSplit: true}}";
    assert_eq!(raw(some, Family::V6, &["10.96.0.10"]), [""; 0]);
    assert_eq!(raw(some, Family::V4, &["10.96.0.10"]).len(), 4);
    assert_eq!(raw(all, Family::V6, &[]).len(), 4);
    assert_eq!(raw(one, Family::V4, &[]), [""; 0]);
    let local = raw(some, Family::V4, &["127.0.0.11"]);
    let answers = "-t raw -A OUTPUT -s 127.0.0.11/32 -d 127.0.0.1/32 -p udp -j CT --zone 1";
    assert_eq!(local.last().map(String::as_str), Some(answers));
    let ipv4 = "ipFamilyMode: ipv4\nredirect: {dns: {enabled: true, captureAll: true}}";
    let policy = of_pod(&facts(kuma_3(ipv4))).expect("a policy");
    assert_eq!(rules::restore(&policy, Family::V6), "");
}

/// iptables-restore refuses a rule with more, and with it all rules.
#[test]
fn users_of_kuma_have_at_most_fifteen_ports() {
    let of = |ports: &str| {
        let entry = format!("tcp:{ports}:1000");
        kuma_3(&format!(
            "redirect: {{outbound: {{excludePortsForUIDs: ['{entry}']}}}}"
        ))
    };
    let ports = |count: u16| {
        (1..=count)
            .map(|it| it.to_string())
            .collect::<Vec<_>>()
            .join(",")
    };
    assert!(of_pod(&facts(of(&ports(15)))).is_ok());
    assert!(problems(of(&ports(16))).contains("more than 15 ports"));
    assert!(of_pod(&facts(of(&format!("{},100-200", ports(13))))).is_ok());
    assert!(problems(of(&format!("{},100-200", ports(14)))).contains("more than 15 ports"));
}

/// Kuma 2.0 has the protocol in the flag, and switches that later versions do not have.
#[test]
fn kuma_2_0_names_users_by_protocol() {
    let args = [
        "--skip-resolv-conf",
        "--exclude-outbound-tcp-ports-for-uids",
        "3000-5000:106-108",
        "--experimental-transparent-proxy-engine",
        "--exclude-outbound-udp-ports-for-uids",
        "53:106",
        "--kuma-dp-uid",
        "6000",
    ];
    let policy = of_pod(&facts(kuma(Some(&args), json!({})))).expect("a policy");
    assert_eq!(policy.proxy_uids, [6000]);
    let rules = lines(&policy, Family::V4);
    for rule in [
        "-A OUTPUT -p tcp -m multiport --dports 3000:5000 -m owner --uid-owner 106-108 -j RETURN",
        "-A OUTPUT -p udp -m multiport --dports 53 -m owner --uid-owner 106 -j RETURN",
    ] {
        assert!(rules.contains(&rule.to_owned()), "{rules:?}");
    }
}

#[test]
fn what_sidetrack_cannot_do_of_kuma_is_said() {
    let of = |text: &str| {
        problems(kuma(
            None,
            json!({"traffic.kuma.io/transparent-proxy-config": text}),
        ))
    };
    let problem = of("redirect: {vnet: {networks: ['docker0:172.17.0.0/16']}}");
    assert!(problem.contains("virtual networks"), "{problem}");
    let problem = of("ebpf: {enabled: true}");
    assert!(problem.contains("Kuma's own programs"), "{problem}");
    let problem = of("redirect: {outbound: {excludePortsForUIDs: ['70000']}}");
    assert!(problem.contains("larger than 65535"), "{problem}");
    let problem = of("a: [");
    assert!(problem.contains("not valid YAML"), "{problem}");
    let problem = of("a: 1\n---\na: 1\n");
    assert!(problem.contains("not one YAML document"), "{problem}");
    let problem = of("kumaDPUser: &a 6000\nb: *a\n");
    assert!(problem.contains("YAML aliases"), "{problem}");
    let many = format!("a: [{}]", "1,".repeat(40_000));
    let problem = of(&many);
    assert!(problem.contains("more YAML than is read"), "{problem}");
}

/// As Consul's injector makes it for its CNI plugin.
fn consul(config: &str) -> Value {
    json!({
        "metadata": {"annotations": {
            "consul.hashicorp.com/connect-inject-status": "injected",
            "consul.hashicorp.com/transparent-proxy-status": "enabled",
            "consul.hashicorp.com/redirect-traffic-config": config,
        }},
        "spec": {
            "initContainers": [{"name": "consul-connect-inject-init"}],
            "containers": [{"name": "app"}, {"name": "consul-dataplane"}],
        },
    })
}

const CONSUL: &str = r#"{"ConsulDNSIP":"127.0.0.1","ConsulDNSPort":8600,"ProxyUserID":"5995","ProxyInboundPort":20000,
"ProxyOutboundPort":15001,"ExcludeInboundPorts":["20400"],"ExcludeOutboundPorts":null,
"ExcludeOutboundCIDRs":["10.1.0.0/16","10.2.0.1"],"ExcludeUIDs":["5996","7000-7010"],"NetNS":"","IptablesProvider":null}"#;

#[test]
fn consul_comes_to_its_own_rules() {
    let policy = of_pod(&facts(consul(CONSUL))).expect("a policy");
    assert_eq!(
        lines(&policy, Family::V4),
        [
            "-A PREROUTING -p tcp -j CONSUL_PROXY_INBOUND",
            "-A OUTPUT -d 127.0.0.1/32 -p udp -m udp --dport 53 -j CONSUL_DNS_REDIRECT",
            "-A OUTPUT -d 127.0.0.1/32 -p tcp -m tcp --dport 53 -j CONSUL_DNS_REDIRECT",
            "-A OUTPUT -p tcp -j CONSUL_PROXY_OUTPUT",
            "-A CONSUL_DNS_REDIRECT -d 127.0.0.1/32 -p udp -m udp --dport 53 -j DNAT --to-destination 127.0.0.1:8600",
            "-A CONSUL_DNS_REDIRECT -d 127.0.0.1/32 -p tcp -m tcp --dport 53 -j DNAT --to-destination 127.0.0.1:8600",
            "-A CONSUL_PROXY_INBOUND -p tcp -m tcp --dport 20400 -j RETURN",
            "-A CONSUL_PROXY_INBOUND -p tcp -j CONSUL_PROXY_IN_REDIRECT",
            "-A CONSUL_PROXY_IN_REDIRECT -p tcp -j REDIRECT --to-ports 20000",
            // Each was inserted before the last.
            "-A CONSUL_PROXY_OUTPUT -m owner --uid-owner 7000-7010 -j RETURN",
            "-A CONSUL_PROXY_OUTPUT -m owner --uid-owner 5996 -j RETURN",
            "-A CONSUL_PROXY_OUTPUT -d 10.2.0.1/32 -j RETURN",
            "-A CONSUL_PROXY_OUTPUT -d 10.1.0.0/16 -j RETURN",
            "-A CONSUL_PROXY_OUTPUT -m owner --uid-owner 5995 -j RETURN",
            "-A CONSUL_PROXY_OUTPUT -d 127.0.0.1/32 -j RETURN",
            "-A CONSUL_PROXY_OUTPUT -j CONSUL_PROXY_REDIRECT",
            "-A CONSUL_PROXY_REDIRECT -p tcp -j REDIRECT --to-ports 15001",
        ]
    );
    assert_eq!(lines(&policy, Family::V6), Vec::<String>::new());
    assert!(policy.ipv4_only && !policy.dual_stack);
    let mut dual = consul(CONSUL);
    dual["metadata"]["annotations"]["consul.hashicorp.com/dual-stack"] = "true".into();
    let policy = of_pod(&facts(dual)).expect("a policy");
    assert!(policy.dual_stack && !policy.ipv4_only);
}

/// They go to iptables as they are.
#[test]
fn consul_has_open_ranges() {
    let config = r#"{"ProxyUserID":"5995","ProxyInboundPort":20000,"ExcludeInboundPorts":[":1023","8000:9000"],
"ExcludeOutboundPorts":["1024:"],"ExcludeUIDs":["6000:6010"]}"#;
    let rules = lines(
        &of_pod(&facts(consul(config))).expect("a policy"),
        Family::V4,
    );
    for rule in [
        "-A CONSUL_PROXY_INBOUND -p tcp -m tcp --dport 0:1023 -j RETURN",
        "-A CONSUL_PROXY_INBOUND -p tcp -m tcp --dport 8000:9000 -j RETURN",
        "-A CONSUL_PROXY_OUTPUT -p tcp -m tcp --dport 1024:65535 -j RETURN",
        "-A CONSUL_PROXY_OUTPUT -m owner --uid-owner 6000-6010 -j RETURN",
    ] {
        assert!(rules.contains(&rule.to_owned()), "{rules:?}");
    }
    let service =
        r#"{"ProxyUserID":"5995","ProxyInboundPort":20000,"ExcludeInboundPorts":["http"]}"#;
    assert!(problems(consul(service)).contains("\"http\" is not a port"));
}

/// The resolver may be ::1 in a pod without an IPv6 address. connect-init reads a variable.
#[test]
fn consul_with_dual_stack_has_ipv6_rules_in_every_pod() {
    let config = r#"{"ConsulDNSIP":"::1","ConsulDNSPort":8600,"ProxyUserID":"5995","ProxyInboundPort":20000}"#;
    let of = |annotation: Option<&str>, variable: Option<&str>| {
        let mut pod = consul(config);
        if let Some(value) = annotation {
            pod["metadata"]["annotations"]["consul.hashicorp.com/dual-stack"] = value.into();
        }
        if let Some(value) = variable {
            pod["spec"]["initContainers"][0]["env"] = json!([
                {"name": "CONSUL_REDIRECT_TRAFFIC_CONFIG", "value": config},
                {"name": "CONSUL_DUAL_STACK", "value": value},
            ]);
        }
        let policy = of_pod(&facts(pod)).expect("a policy");
        let v4 = ["10.0.0.1".parse().expect("an address")].into_iter();
        assert_eq!(policy.captures_v6(std::iter::empty()), policy.dual_stack);
        policy.captures_v6(v4)
    };
    assert!(of(Some("true"), None) && !of(None, None));
    assert!(of(None, Some("true")) && !of(Some("true"), Some("false")));
}

#[test]
fn consul_without_usable_settings_is_rejected() {
    assert!(problems(consul("{")).contains("cannot be read"));
    let problem = problems(consul(
        r#"{"ProxyUserID":"5995","ProxyInboundPort":0,"ConsulDNSIP":"10.0.0.9"}"#,
    ));
    assert!(
        problem.contains("ProxyInboundPort in annotation"),
        "{problem}"
    );
    assert!(
        problem.contains("only 127.0.0.1 and ::1 are served"),
        "{problem}"
    );
    let mut pod = consul("");
    pod["metadata"]["annotations"]["consul.hashicorp.com/redirect-traffic-config"] = Value::Null;
    pod["metadata"]["annotations"]
        .as_object_mut()
        .expect("a map")
        .remove("consul.hashicorp.com/redirect-traffic-config");
    assert!(problems(pod).contains("inject the pod again"));
}

#[test]
fn a_pod_is_selected_by_its_own_mesh() {
    assert!(matches!(
        chosen(&facts(linkerd(Some(&LINKERD_INIT), json!({})))),
        Wanted::Enrolled(_)
    ));
    let mut gateway = consul(CONSUL);
    gateway["metadata"]["annotations"] = json!({});
    assert!(matches!(
        chosen(&facts(gateway)),
        Wanted::Skipped(Skipped::NotOfInjector(..))
    ));
    let mut plain = kuma(None, json!({}));
    plain["metadata"]["annotations"]["kuma.io/sidecar-injected"] = "false".into();
    assert!(matches!(
        chosen(&facts(plain)),
        Wanted::Skipped(Skipped::NotOfInjector(..))
    ));
    let mut two = kuma(None, json!({}));
    two["spec"]["containers"] = json!([{"name": "istio-proxy"}]);
    let Wanted::Rejected(Rejected::SeveralMeshes(names)) = chosen(&facts(two)) else {
        panic!("two sidecars");
    };
    assert_eq!(names, "istio and kuma");
    let istio_only = Mesh {
        served: vec![MeshName::Istio],
        ..Mesh::new(Enroll::Injected)
    };
    let other = wanted(&facts(linkerd(None, json!({}))), None, &istio_only);
    assert!(matches!(
        other,
        Wanted::Skipped(Skipped::OtherMesh(MeshName::Linkerd))
    ));
}

#[test]
fn passthrough_before_the_sidecar_is_for_istio() {
    let pod = linkerd(None, json!({"sidetrack.dev/before-sidecar": "passthrough"}));
    assert!(problems(pod).contains("it is for sidecars of Istio"));
}

#[test]
fn acceleration_is_for_pods_with_a_sidecar() {
    let accelerated = |value: &str| {
        let annotations = json!({"sidetrack.dev/accelerate": value});
        let policy = of_pod(&facts(linkerd(None, annotations)));
        policy.expect("a policy").accelerate
    };
    assert!(accelerated("true") && !accelerated("false"));
    let ambient = |value: &str| {
        let pod = json!({
            "metadata": {"annotations": {"sidetrack.dev/accelerate": value}},
            "spec": {"containers": [{"name": "app"}]},
        });
        Policy::of_ambient_pod(&facts(pod))
    };
    let refused = ambient("true").expect_err("a problem");
    assert!(refused[0].to_string().contains("for pods with a sidecar"));
    let policy = ambient("false").expect("a policy");
    assert!(!policy.accelerate && policy.dual_stack && policy.proxy_uids.is_empty());
}
