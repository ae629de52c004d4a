use crate::{
    fixture::pod,
    mesh::Mesh,
    migration::{Migration, Programmer},
    select::{Enroll, NamespaceLabels, Rejected, Wanted},
};

const LABELED: NamespaceLabels<'_> = NamespaceLabels::interception(Some("enabled"));

const ARGUMENTS: &str = "istio-iptables, -p, '15001', -z, '15006', -u, '1337', -m, REDIRECT, -i, '*', -x, '', -b, '*', -d, '15090,15021,15020'";

fn with_init(arguments: &str, image: &str) -> String {
    format!(
        "metadata: {{name: web, namespace: shop}}
spec:
  initContainers:
  - {{name: istio-init, image: 'istio/proxyv2:{image}', args: [{arguments}]}}
  containers:
  - {{name: app}}
  - {{name: istio-proxy, image: 'istio/proxyv2:1.20.0'}}
"
    )
}

fn migrate(yaml: &str) -> Migration {
    Migration::of(&pod(yaml), LABELED, None, &Mesh::new(Enroll::Labeled))
}

#[test]
fn the_rules_stay_the_same() {
    let migration = migrate(&with_init(ARGUMENTS, "1.20.0"));
    assert_eq!(migration.today, Programmer::IstioInit);
    assert!(matches!(migration.then, Wanted::Enrolled(_)));
    assert_eq!(migration.differences, [""; 0]);
    let rules = migration.rules_today.expect("rules");
    assert_eq!(Some(&rules), migration.rules_then.as_ref());
    let redirect = "iptables -A ISTIO_REDIRECT -p tcp -j REDIRECT --to-ports 15001";
    assert!(rules.iter().any(|rule| rule == redirect), "{rules:#?}");
    assert!(rules.iter().any(|rule| rule.starts_with("ip6tables ")));
}

#[test]
fn another_version_of_istio_init_has_other_rules() {
    let migration = migrate(&with_init(ARGUMENTS, "1.12.7"));
    let ssh = "rule only today: iptables -A ISTIO_INBOUND -p tcp -m tcp --dport 22 -j RETURN";
    assert!(
        migration.differences.iter().any(|one| one == ssh),
        "{:#?}",
        migration.differences
    );
    assert!(
        migration
            .differences
            .iter()
            .any(|one| one.starts_with("rule only then: "))
    );
}

#[test]
fn what_sidetrack_does_not_do_is_named() {
    let more = format!(
        "{ARGUMENTS}, --redirect-dns, --drop-invalid, --run-validation, --probe-timeout, 5s"
    );
    let migration = migrate(&with_init(&more, "1.20.0"));
    let [unknown] = migration.differences.as_slice() else {
        panic!("{:#?}", migration.differences);
    };
    assert!(unknown.contains("flag --drop-invalid, which sidetrack does not know"));
}

#[test]
fn pods_that_would_be_rejected() {
    let tproxy = ARGUMENTS.replace("REDIRECT", "TPROXY");
    let migration = migrate(&with_init(&tproxy, "1.20.0"));
    assert!(matches!(migration.then, Wanted::Enrolled(_)));
    let rules = migration.rules_today.expect("rules");
    assert!(
        rules.iter().any(|rule| rule.contains("-j TPROXY")),
        "{rules:?}"
    );
    let old = with_init(&tproxy, "1.5.0").replace("1.20.0", "1.5.0");
    let migration = migrate(&old);
    assert!(matches!(
        migration.then,
        Wanted::Rejected(Rejected::OldTproxy(_))
    ));
    assert_eq!(migration.rules_then, None);

    let interfaces = format!("{ARGUMENTS}, -c, eth1");
    let old_kernel = Mesh {
        sees_interfaces: false,
        ..Mesh::new(Enroll::Labeled)
    };
    let pod = pod(&with_init(&interfaces, "1.20.0"));
    let migration = Migration::of(&pod, LABELED, None, &old_kernel);
    assert!(matches!(
        migration.then,
        Wanted::Rejected(Rejected::Interfaces(_))
    ));

    let wrong = ARGUMENTS.replace("15001", "port");
    let migration = migrate(&with_init(&wrong, "1.20.0"));
    assert!(matches!(
        migration.then,
        Wanted::Rejected(Rejected::Policy(_))
    ));
    assert_eq!(migration.rules_today, None);
}

#[test]
fn who_programs_the_rules_today() {
    let base = with_init(ARGUMENTS, "1.20.0");
    for (yaml, expected) in [
        (base.clone(), Programmer::IstioInit),
        (
            base.replace("istio-init", "istio-validation"),
            Programmer::Node,
        ),
        (base.replace("istio-init", "other"), Programmer::Unknown),
        (
            base.replace("name: istio-proxy", "name: proxy"),
            Programmer::Nothing,
        ),
        (
            base.replace("istio-init", "sidetrack-validation").replace(
                "namespace: shop}",
                "namespace: shop, annotations: {sidetrack.dev/istio-init: '{}'}}",
            ),
            Programmer::Sidetrack,
        ),
    ] {
        assert_eq!(migrate(&yaml).today, expected, "{yaml}");
    }
}

#[test]
fn who_programs_the_rules_has_a_name() {
    let named = |yaml: &str| migrate(yaml).today.name();
    assert_eq!(named(&with_init(ARGUMENTS, "1.20.0")), "istio-init");
    let with = |init: &str, sidecar: &str| {
        named(&format!(
            "spec: {{initContainers: [{{name: {init}}}], containers: [{{name: {sidecar}}}]}}"
        ))
    };
    assert_eq!(with("istio-validation", "istio-proxy"), "node");
    assert_eq!(with("other", "istio-proxy"), "unknown");
    assert_eq!(with("other", "app"), "nothing");
}

#[test]
fn a_sandbox_by_the_handler_of_its_class_is_rejected() {
    let yaml = with_init(ARGUMENTS, "1.20.0") + "  runtimeClassName: secure\n";
    let of = |handler| Migration::of(&pod(&yaml), LABELED, handler, &Mesh::new(Enroll::Labeled));
    assert!(matches!(of(None).then, Wanted::Enrolled(_)));
    assert!(matches!(of(Some("runsc")).then, Wanted::Rejected(_)));
}
