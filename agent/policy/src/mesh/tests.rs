use super::{MeshName, Served};

#[test]
fn the_meshes_that_are_served() {
    let all = MeshName::ALL.to_vec();
    assert_eq!(Served::meshes(&[]), Ok(all.clone()));
    assert_eq!(Served::meshes(&[Served::Auto]), Ok(all));
    let each = [Served::Istio, Served::Linkerd, Served::Kuma, Served::Consul];
    let named = Served::meshes(&each).expect("meshes");
    let named: Vec<String> = named.iter().map(ToString::to_string).collect();
    assert_eq!(named, ["istio", "linkerd", "kuma", "consul"]);
    let both = Served::meshes(&[Served::Auto, Served::Kuma]);
    assert!(both.expect_err("a contradiction").contains("auto alone"));
}
