use std::{fs, path::Path};

use sidetrack_common::LAYOUT_VERSION;
use tempfile::TempDir;

use super::{refuse_other, remove_everything, version, versions};

/// A directory with the given files; ordinary files stand for pins.
fn root(files: &[String]) -> TempDir {
    let root = tempfile::tempdir().unwrap();
    for file in files {
        let path = root.path().join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, "").unwrap();
    }
    root
}

#[test]
fn only_plain_numbers_are_versions() {
    assert_eq!(version(Path::new("/x/v2")), Some(2));
    assert_eq!(version(Path::new("/x/v12")), Some(12));
    for name in ["v", "v02", "v+2", "v2_new", "2", "V2", "v99999999999"] {
        assert_eq!(version(&Path::new("/x").join(name)), None, "{name}");
    }
}

#[test]
fn versions_are_sorted_by_number() {
    let root = root(&["v10/maps/A", "v9/maps/A", "v2/maps/A", "other/A", "v3"].map(str::to_owned));
    let numbers: Vec<u32> = versions(root.path())
        .unwrap()
        .into_iter()
        .map(|(version, _)| version)
        .collect();
    assert_eq!(numbers, [2, 9, 10], "v3 is a file");
    assert!(versions(&root.path().join("absent")).unwrap().is_empty());
}

#[test]
fn other_layouts_with_pins_are_refused() {
    for other in [LAYOUT_VERSION + 1, LAYOUT_VERSION - 1] {
        let both = root(&[
            format!("v{other}/maps/A"),
            format!("v{LAYOUT_VERSION}/maps/A"),
        ]);
        let refused = refuse_other(both.path()).expect_err("pins of another layout");
        let path = both.path().join(format!("v{other}"));
        let wanted = format!("{} is of another sidetrack version", path.display());
        assert!(refused.to_string().starts_with(&wanted), "{refused}");
        fs::remove_file(both.path().join(format!("v{other}/maps/A"))).unwrap();
        refuse_other(both.path()).expect("empty directories do not count");
    }
}

#[test]
fn removal_lists_entries_sidetrack_did_not_create() {
    let root = root(&[
        "v1/links/connect4_new".to_owned(),
        "v1/maps/A".to_owned(),
        "v1/foreign".to_owned(),
        "v2/links/sockops".to_owned(),
    ]);
    let removed = remove_everything(root.path()).unwrap();
    let at = |name: &str| root.path().join(name);
    assert_eq!(
        removed.links,
        [at("v1/links/connect4_new"), at("v2/links/sockops")]
    );
    assert_eq!(removed.maps, [at("v1/maps/A")]);
    assert_eq!(removed.directories, [at("v2")]);
    assert_eq!(removed.remaining, [at("v1/foreign")], "and not v1 itself");
    assert!(at("v1/foreign").exists());
}
