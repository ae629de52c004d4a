use serde_json::json;

use super::metadata;

#[test]
fn the_charts_own_metadata() {
    let text = include_str!("../../../../deploy/chart/Chart.yaml");
    let read = metadata(text).expect("understood");
    assert_eq!(read["name"], "sidetrack");
    assert_eq!(read["apiVersion"], "v2");
    assert_eq!(read["version"], env!("CARGO_PKG_VERSION"));
    assert_eq!(read["kubeVersion"], ">=1.30.0-0");
    assert!(
        read["keywords"]
            .as_array()
            .is_some_and(|it| it.contains(&json!("ebpf")))
    );
}

#[test]
fn nothing_is_omitted() {
    assert!(metadata("name: a\nmaintainers:\n- b\n").is_err());
}
