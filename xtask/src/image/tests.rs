use std::{fs, process};

use serde_json::json;

use super::{Image, full_name, read};
use crate::arch::Arch;

#[test]
fn the_digest_is_that_of_the_index() {
    let layout = std::env::temp_dir().join(format!("sidetrack-layout-{}", process::id()));
    let blobs = layout.join("blobs/sha256");
    fs::create_dir_all(&blobs).expect("a directory");
    let write = |name: &str, content: serde_json::Value| {
        fs::write(blobs.join(name), content.to_string()).expect("a blob");
    };
    let part =
        |arch: &str, digest: &str| json!({"digest": digest, "platform": {"architecture": arch}});
    write(
        "a",
        json!({"manifests": [part("amd64", "sha256:b"), part("arm64", "sha256:c")]}),
    );
    write("b", json!({"layers": [{"size": 1}, {"size": 2}]}));
    write("c", json!({"layers": [{"size": 4}]}));
    let index = json!({"manifests": [{"digest": "sha256:a"}]});
    fs::write(layout.join("index.json"), index.to_string()).expect("an index");
    let image = read(&layout, &Arch::ALL);
    fs::remove_dir_all(&layout).expect("removed");
    let expected = Image {
        digest: "sha256:a".to_owned(),
        sizes: vec![(Arch::Amd64, 3), (Arch::Arm64, 4)],
    };
    assert_eq!(image.expect("read"), expected);
}

#[test]
fn names_are_completed_as_kubelet_does() {
    for (tag, full) in [
        ("sidetrack:1", "docker.io/library/sidetrack:1"),
        ("mesh/sidetrack:1", "docker.io/mesh/sidetrack:1"),
        ("localhost/sidetrack:1", "localhost/sidetrack:1"),
        (
            "registry.example.com/sidetrack:1",
            "registry.example.com/sidetrack:1",
        ),
        ("registry:5000/sidetrack:1", "registry:5000/sidetrack:1"),
    ] {
        assert_eq!(full_name(tag), full);
    }
}
