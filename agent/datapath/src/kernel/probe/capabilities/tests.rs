use super::missing;

#[test]
fn missing_capabilities_are_named() {
    assert!(missing(u64::MAX).is_empty());
    assert_eq!(
        missing(0),
        [
            "CAP_NET_ADMIN",
            "CAP_SYS_PTRACE",
            "CAP_SYS_ADMIN",
            "CAP_PERFMON",
            "CAP_BPF"
        ]
    );
    // What Docker gives a container by default (`CapEff` of its /proc/self/status).
    assert_eq!(missing(0x0000_0000_a804_25fb).len(), 5);
    assert_eq!(missing(!(1 << 19)), ["CAP_SYS_PTRACE"]);
    // All of Linux 5.7, before CAP_PERFMON and CAP_BPF.
    assert_eq!(missing(0x0000_003f_ffff_ffff), ["CAP_PERFMON", "CAP_BPF"]);
}
