use super::*;

/// As Linkerd's injector makes it, with a native sidecar.
pub(super) fn linkerd(init: Option<&[&str]>, annotations: Value) -> Value {
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

pub(super) const LINKERD_INIT: [&str; 11] = [
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

/// As pflag reads them: a value attached to its letter, and letters together.
#[test]
fn short_flags_of_proxy_init_may_be_attached() {
    let of = |args: &[&str]| of_pod(&facts(linkerd(Some(args), json!({})))).expect("a policy");
    let rest = ["--inbound-ports-to-ignore", "4190,4191", "--ipv6=false"];
    let apart = of(&[&["-p", "4143", "-o", "4140", "-u", "2102"][..], &rest].concat());
    assert_eq!(apart.proxy_uids, [2102]);
    assert_eq!(
        of(&[&["-p4143", "-o=4140", "-u2102"][..], &rest].concat()),
        apart
    );
    assert_eq!(
        of(&[&["-p4143", "-o4140", "-wu", "2102"][..], &rest].concat()),
        apart
    );
}
