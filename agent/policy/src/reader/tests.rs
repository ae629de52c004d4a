use super::{Readers, Scope, check};

fn words(line: &str) -> Vec<String> {
    line.split_whitespace().map(str::to_owned).collect()
}

#[test]
fn a_reader_of_the_node_runs_what_changes_nothing() {
    for line in [
        "status -o json",
        "pods -o json",
        "why shop/web -o json",
        "explain shop/web outbound --dst 10.0.0.1:80 --uid=5",
        "rules shop/web -6",
    ] {
        assert_eq!(check(&words(line), &Scope::Node), Ok(()), "{line}");
    }
    for line in [
        "",
        "cleanup",
        "agent",
        "trace shop/web",
        "foreign-files",
        "status --socket /run/other",
        "status --socket=/run/other",
        "rules --manifest /etc/shadow",
        "rules --manifest=-",
        "status --wait shop/web",
        "pods -njson",
        "pods --only-namespace other",
        "explain shop/web outbound --dst example.com:80",
        "explain shop/web outbound --dst=example.com:80",
        "cost --interval 1h",
        "--help",
    ] {
        assert!(check(&words(line), &Scope::Node).is_err(), "{line}");
    }
}

#[test]
fn a_reader_of_a_namespace_asks_about_pods() {
    let shop = Scope::Namespace("shop".to_owned());
    for line in ["pods", "why shop/web", "connections", "events -n shop"] {
        assert_eq!(check(&words(line), &shop), Ok(()), "{line}");
    }
    for line in [
        "status -o json",
        "cost",
        "version",
        "pods --only-namespace=other",
    ] {
        assert!(check(&words(line), &shop).is_err(), "{line}");
    }
}

#[test]
fn a_reader_is_a_service_account_of_the_name() {
    let of = |user: &str| Scope::of_user(user, "mesh", Readers::Namespaces);
    let (mesh, shop) = (
        "system:serviceaccount:mesh:sidetrack-reader",
        "system:serviceaccount:shop:sidetrack-reader",
    );
    assert_eq!(of(mesh), Some(Scope::Node));
    assert_eq!(of(shop), Some(Scope::Namespace("shop".to_owned())));
    for (readers, wanted) in [(Readers::Cluster, Some(Scope::Node)), (Readers::None, None)] {
        assert_eq!(Scope::of_user(mesh, "mesh", readers), wanted);
        assert_eq!(Scope::of_user(shop, "mesh", readers), None);
    }
    for other in [
        "system:serviceaccount:mesh:sidetrack",
        "system:serviceaccount::sidetrack-reader",
        "system:serviceaccount:a:b:sidetrack-reader",
        "sidetrack-reader",
        "admin",
        "",
    ] {
        assert_eq!(of(other), None, "{other}");
    }
}
