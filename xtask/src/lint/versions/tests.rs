use super::{behind, complaint, parse};
use crate::workspace::Package;

fn package(rust_version: Option<&str>, source: Option<&str>) -> Package {
    Package {
        name: "some".to_owned(),
        manifest_path: "some/Cargo.toml".into(),
        rust_version: rust_version.map(str::to_owned),
        source: source.map(str::to_owned),
        dependencies: Vec::new(),
    }
}

#[test]
fn versions_are_read_behind_a_text() {
    assert_eq!(behind("needs Rust 1.95. Then", "Rust "), Some("1.95"));
    assert_eq!(behind("channel = \"stable\"", "channel = \""), None);
    assert!(parse("1.95.0") == parse("1.95") && parse("1.100") > parse("1.95"));
}

#[test]
fn own_packages_have_it_and_others_need_no_newer_one() {
    let crates_io = Some("registry");
    assert!(complaint(&package(Some("1.95"), None), "1.95").is_none());
    assert!(complaint(&package(Some("1.94"), None), "1.95").is_some());
    assert!(complaint(&package(None, None), "1.95").is_some());
    assert!(complaint(&package(Some("1.56.1"), crates_io), "1.95").is_none());
    assert!(complaint(&package(None, crates_io), "1.95").is_none());
    assert!(complaint(&package(Some("1.98"), crates_io), "1.95").is_some());
}
