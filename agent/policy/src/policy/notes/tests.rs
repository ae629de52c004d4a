//! Remarks about policies.

use crate::policy::Policy;

#[test]
fn each_remark_has_its_cause() {
    let plain = Policy::default();
    let dns = Policy {
        dns_capture: true,
        ..Policy::default()
    };
    let before = Policy {
        before_sidecar: true,
        ..Policy::default()
    };
    let interfaces = Policy {
        virtual_interfaces: vec!["tap0".to_owned(), "tap1".to_owned()],
        ..Policy::default()
    };
    for (policy, lost, notes) in [
        (plain, None, None),
        (dns, Some("DNS capture"), Some("DNS capture")),
        (
            interfaces,
            Some("from tap0,tap1 to elsewhere"),
            Some("from tap0,tap1 to elsewhere"),
        ),
        // It was asked for, so nothing is lost by it.
        (before, None, Some("until the sidecar first listens")),
    ] {
        for (texts, expected) in [(policy.lost(), lost), (policy.notes(), notes)] {
            assert_eq!(texts.len(), usize::from(expected.is_some()), "{texts:?}");
            let contains = |text: &str| texts.iter().any(|known| known.contains(text));
            assert!(expected.is_none_or(contains), "{expected:?} in {texts:?}");
        }
    }
}
