use super::full_name;

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
