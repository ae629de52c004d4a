use super::{Kernel, OLDEST, has_backports};

#[test]
fn releases() {
    for (release, expected) in [
        ("6.1.0-30-amd64", Some((6, 1))),
        ("5.15.0-1054-aws", Some((5, 15))),
        ("5.14.0-503.11.1.el9_5.x86_64", Some((5, 14))),
        ("7.3-rc1", Some((7, 3))),
        ("10.0", Some((10, 0))),
        ("6", None),
        ("", None),
        ("unknown", None),
    ] {
        let parsed = Kernel::parse(release);
        assert_eq!(
            parsed.map(|one| (one.major, one.minor)),
            expected,
            "{release}"
        );
    }
}

#[test]
fn distributions_port_facilities_back() {
    assert!(has_backports("5.14.0-570.32.1.el9_6.x86_64"));
    assert!(!has_backports("5.14.21-150500.55.19-default") && !has_backports("5.10.0-30-amd64"));
}

#[test]
fn restrictions_end_with_5_19() {
    let of = |release| Kernel::parse(release).expect("a release");
    assert!(of("5.14.21") < OLDEST && of("5.15.0") >= OLDEST && of("10.0") >= OLDEST);
    assert!(!of("5.16.9").sees_interfaces() && of("5.17.0").sees_interfaces());
    let effects = |release| {
        let text = of(release).restriction().unwrap_or_default();
        ["interfaces", "EPERM", "MPTCP"].map(|word| text.contains(word))
    };
    assert_eq!(effects("5.15.0"), [true; 3]);
    assert_eq!(effects("5.17.0"), [false, true, true]);
    assert_eq!(effects("5.18.0"), [false, false, true]);
    assert_eq!(of("5.19.0").restriction(), None);
}
