use super::{is_kernel, kernel, number};
use crate::arch::Arch;

#[test]
fn packages_that_are_kernels() {
    for name in [
        "linux-image-6.1.0-56-cloud-amd64",
        "linux-image-7.3.4+deb13-cloud-amd64",
    ] {
        assert!(is_kernel(name, Arch::Amd64), "{name}");
    }
    for name in [
        "linux-image-cloud-amd64",
        "linux-image-6.1-cloud-amd64",
        "linux-image-6.1.0-56-amd64",
        "linux-image-6.1.0-56-cloud-amd64-dbg",
        "linux-image-6.1.0-56-cloud-amd64-unsigned",
        "linux-image-6.1.0-56-cloud-arm64",
    ] {
        assert!(!is_kernel(name, Arch::Amd64), "{name}");
    }
    assert!(is_kernel("linux-image-6.1.0-56-cloud-arm64", Arch::Arm64));
}

#[test]
fn descriptions() {
    let description = "Package: linux-image-7.3.4+deb13-cloud-amd64\nVersion: 7.3.4-1~bpo13+1\n\
            Depends: dracut | initramfs-tools (>= 0.120), linux-base-7.3.4+deb13-cloud-amd64 (= 7.3.4-1~bpo13+1), \
            linux-binary-7.3.4+deb13-cloud-amd64 (= 7.3.4-1~bpo13+1), linux-modules-7.3.4+deb13-cloud-amd64 (= 7.3.4-1~bpo13+1)";
    let kernel = kernel("trixie-backports", description, Arch::Amd64).expect("a kernel");
    assert_eq!(kernel.number, (7, 3, 4));
    assert_eq!(kernel.release, "7.3.4+deb13-cloud-amd64");
    assert_eq!(kernel.packages.len(), 3);
}

#[test]
fn versions_are_ordered_by_number() {
    assert_eq!(number("6.12.117-1"), Some((6, 12, 117)));
    assert!(number("6.1.192-2") > number("6.1.99-1"));
    assert_eq!(number("7.3~rc7-1~exp1"), None);
    assert_eq!(number("nonsense"), None);
}
