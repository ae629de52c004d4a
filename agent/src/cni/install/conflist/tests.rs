use std::path::Path;

use super::{Entry, NetworkConfig};

fn list(text: &str) -> NetworkConfig {
    NetworkConfig::parse(Path::new("x.conflist"), text.as_bytes()).unwrap()
}

fn entry(seconds: u64) -> Entry {
    Entry::new(Path::new("/run/s.sock"), seconds, Vec::new())
}

#[test]
fn the_plugin_is_added_once_and_replaced_when_it_differs() {
    let mut config =
        list(r#"{"cniVersion": "1.0.0", "name": "n", "plugins": [{"type": "a"}, {"type": "b"}]}"#);
    assert!(!config.has_plugin());
    assert!(config.put(&entry(10)).unwrap());
    assert!(!config.put(&entry(10)).unwrap());
    assert!(config.put(&entry(20)).unwrap());
    let text = config.text();
    assert_eq!(text.matches("sidetrack-cni").count(), 1, "{text}");
    assert!(text.contains("\"timeoutSeconds\":20"), "{text}");
    let socket = Path::new("/run/s.sock");
    assert!(!config.remove(Path::new("/run/other.sock")));
    assert!(config.remove(socket) && !config.remove(socket));
    assert!(!list(&config.text()).has_plugin());
}

#[test]
fn an_entry_that_is_not_understood_is_replaced() {
    let mut config = list(
        r#"{"cniVersion": "1.0.0", "name": "n", "plugins": [{"type": "a"}, {"type": "sidetrack-cni", "socket": 7}]}"#,
    );
    assert!(!config.remove(Path::new("/run/s.sock")));
    assert!(config.put(&entry(10)).unwrap());
    assert_eq!(config.text().matches("sidetrack-cni").count(), 1);
}

#[test]
fn plugins_of_others_may_follow() {
    let text = format!(
        r#"{{"cniVersion": "1.0.0", "name": "n", "plugins": [{{"type": "a"}}, {}, {{"type": "b"}}]}}"#,
        serde_json::to_string(&entry(10)).unwrap()
    );
    assert!(!list(&text).put(&entry(10)).unwrap());
    // As the first plugin it would get no result to pass on.
    let first = text.replacen(r#"{"type": "a"}, "#, "", 1);
    let mut first = list(&first);
    assert!(first.put(&entry(10)).unwrap());
    let text = first.text();
    assert!(text.find("\"b\"") < text.find("sidetrack-cni"), "{text}");
}

#[test]
fn a_single_plugin_becomes_a_list() {
    let text = br#"{"cniVersion": "0.3.1", "name": "n", "type": "bridge", "mtu": 1.5e3}"#;
    let mut config = NetworkConfig::parse(Path::new("x.conf"), text).unwrap();
    assert!(!config.is_list());
    config.put(&entry(10)).unwrap();
    let value: serde_json::Value = serde_json::from_str(&config.text()).unwrap();
    assert_eq!(value["name"], "n");
    assert_eq!(value["cniVersion"], "0.3.1");
    assert_eq!(value["plugins"][0]["type"], "bridge");
    assert_eq!(value["plugins"][1]["type"], "sidetrack-cni");
    assert_eq!(value.as_object().unwrap().len(), 3);
    assert!(config.text().contains("1.5e3"));
}

#[test]
fn versions_without_chains_are_refused() {
    for version in ["", "0.2.0", "2.0.0"] {
        let text =
            format!(r#"{{"cniVersion": "{version}", "name": "n", "plugins": [{{"type": "a"}}]}}"#);
        assert!(list(&text).put(&entry(10)).is_err(), "{version:?}");
    }
}
