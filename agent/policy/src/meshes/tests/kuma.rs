use super::*;

/// As Kuma's injector makes it.
pub(super) fn kuma(init: Option<&[&str]>, mut annotations: Value) -> Value {
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
    assert_eq!(dns, (DnsCapture::Servers(None), 15054));
    assert_eq!(policy.excluded_outbound_ports, [6379]);

    let file = "--config=/tmp/transparent-proxy/base/config.yaml";
    let other = "--config=/tmp/transparent-proxy/custom/config.yaml";
    let annotation = || json!({"traffic.kuma.io/transparent-proxy-config": text});
    let policy = of_pod(&facts(kuma(Some(&[file]), annotation()))).expect("a policy");
    assert_eq!(policy.excluded_outbound_ports, [3306]);
    for (args, annotations, why) in [
        (&[file, other][..], annotation(), "a second configuration"),
        (&[other], json!({}), "not in the pod's manifest"),
    ] {
        let problem = problems(kuma(Some(args), annotations));
        let named = "argument --config of kuma-init is \"/tmp/transparent-proxy/custom/";
        assert!(
            problem.contains(named) && problem.contains(why),
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

#[test]
fn spellings_that_kuma_takes() {
    let config = |text: &str| {
        let annotations = json!({"traffic.kuma.io/transparent-proxy-config": text});
        of_pod(&facts(kuma(None, annotations)))
    };
    // Kuma writes the rules of both families for any spelling but the one that it compares with.
    assert!(config("ipFamilyMode: ipv4").expect("a policy").ipv4_only);
    assert!(!config("ipFamilyMode: IPv4").expect("a policy").ipv4_only);
    let exclusions = |entry: &str| {
        let text = format!("redirect: {{outbound: {{excludePortsForUIDs: ['{entry}']}}}}");
        config(&text).map(|policy| policy.exclusions)
    };
    assert_eq!(exclusions("TCP:22:1000"), exclusions("tcp:22:1000"));
    assert!(exclusions("sctp:22:1000").is_err());
}

/// Kuma's CNI plugin fails for another word, and takes an empty configuration for none.
#[test]
fn kuma_reads_four_words_and_no_empty_configuration() {
    for value in ["t", "1", "yes"] {
        let text = problems(kuma(None, json!({"kuma.io/gateway": value})));
        assert!(text.contains("write enabled or disabled"), "{text}");
    }
    let of = |annotations: Value| of_pod(&facts(kuma(None, annotations))).expect("a policy");
    assert_eq!(
        of(json!({"traffic.kuma.io/transparent-proxy-config": ""})),
        of(json!({}))
    );
}
