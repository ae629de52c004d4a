use super::*;

/// As Consul's injector makes it for its CNI plugin.
pub(super) fn consul(config: &str) -> Value {
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

pub(super) const CONSUL: &str = r#"{"ConsulDNSIP":"127.0.0.1","ConsulDNSPort":8600,"ProxyUserID":"5995","ProxyInboundPort":20000,
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
    // Consul compares with that word.
    let mut other = consul(CONSUL);
    other["metadata"]["annotations"]["consul.hashicorp.com/dual-stack"] = "True".into();
    assert!(of_pod(&facts(other)).expect("a policy").ipv4_only);
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
