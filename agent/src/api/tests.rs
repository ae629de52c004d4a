use super::unserved;

#[test]
fn ports_without_a_listener_are_named_if_connections_are_refused() {
    let (up, down, unknown) = (Some(true), Some(false), None);
    let both = Some("outbound port or its inbound port");
    let (outbound, inbound) = (Some("outbound port"), Some("inbound port"));
    for (out, into, expected) in [
        ((down, false), (down, false), None),
        // It listens again.
        ((up, true), (up, true), None),
        ((down, true), (up, false), outbound),
        ((up, false), (down, true), inbound),
        ((down, true), (down, false), both),
        ((down, false), (down, true), both),
        ((down, true), (down, true), both),
        // What is not known and not refused is not said.
        ((down, true), (unknown, false), outbound),
        ((unknown, false), (down, true), inbound),
        ((unknown, true), (unknown, false), outbound),
        ((unknown, true), (down, false), both),
        ((unknown, true), (down, true), both),
    ] {
        assert_eq!(unserved(out, into), expected, "{out:?}, {into:?}");
    }
}
