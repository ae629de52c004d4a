//! Remarks about policies.

use crate::{
    fixture::annotated,
    policy::{DnsCapture, Policy},
};

#[test]
fn each_remark_has_its_cause() {
    let plain = Policy::default();
    let dns = Policy {
        dns: DnsCapture::Servers(Some(Vec::new())),
        ..Policy::default()
    };
    let before = Policy {
        before_sidecar: true,
        ..Policy::default()
    };
    for (policy, lost, notes) in [
        (plain, None, None),
        (dns, Some("DNS capture"), Some("DNS capture")),
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

#[test]
fn misspelled_annotations_are_named() {
    let annotations = [
        ("traffic.sidecar.istio.io/excludeOutboundPort", "3306"),
        ("traffic.sidecar.istio.io/excludeInboundPorts", "80"),
        ("sidetrack.dev/before-sidecars", "passthrough"),
        ("sidetrack.dev/netns", "/run/netns/a"),
        ("sidecar.istio.io/proxyCPU", "100m"),
    ];
    let pod = annotated(&annotations);
    let policy = Policy::of_pod(&pod, &crate::inputs::Inputs::default()).unwrap();
    let notes = policy.without_effect();
    assert_eq!(notes.len(), 2, "{notes:?}");
    assert!(notes.iter().all(|note| policy.notes().contains(note)));
    for (note, name) in notes.iter().zip([
        "sidetrack.dev/before-sidecar ",
        "traffic.sidecar.istio.io/excludeOutboundPorts ",
    ]) {
        assert!(note.contains(&format!("perhaps {name}is meant")), "{note}");
    }
}

#[test]
fn a_label_among_annotations_has_no_effect() {
    let pod = annotated(&[
        ("sidetrack.dev/interception", "disabled"),
        ("sidetrack.dev/nonsense", "1"),
    ]);
    let policy = Policy::of_pod(&pod, &crate::inputs::Inputs::default()).unwrap();
    let expected = [
        "annotation sidetrack.dev/interception counts only as a label; it has no effect",
        "annotation sidetrack.dev/nonsense is not known; it has no effect",
    ];
    assert_eq!(policy.without_effect(), expected);
}

/// Comparing takes the square of the length, and the API server checks names only later.
#[test]
fn names_that_kubernetes_does_not_allow_are_not_compared() {
    let prefix = "traffic.sidecar.istio.io/excludeOutboundPort";
    let names = ["a", "b", "c"].map(|end| format!("{prefix}{}{end}", "s".repeat(900_000)));
    let pod = annotated(&[(&names[0], ""), (&names[1], ""), (&names[2], "")]);
    let start = std::time::Instant::now();
    let policy = Policy::of_pod(&pod, &crate::inputs::Inputs::default()).unwrap();
    assert!(start.elapsed().as_secs() < 5);
    for note in &policy.unknown_annotations {
        assert!(note.starts_with(prefix) && note.len() < 400, "{note}");
    }
}
