use super::is_default;

#[test]
fn a_default_route_is_one_that_leaves_the_pod() {
    let v4 = "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT
eth0\t00000000\t0101F40A\t0003\t0\t0\t0\t00000000\t0\t0\t0
eth0\t0101F40A\t00000000\t0005\t0\t0\t0\tFFFFFFFF\t0\t0\t0";
    let found: Vec<bool> = v4.lines().map(|it| is_default(it, true)).collect();
    assert_eq!(found, [false, true, false]);
    let any = "00000000000000000000000000000000";
    for (length, interface, expected) in [
        ("00", "eth0", true),
        ("00", "lo", false),
        ("40", "eth0", false),
    ] {
        let route = format!(
            "{any} {length} {any} 00 {any} 00000400 00000001 00000000 00000003 {interface}"
        );
        assert_eq!(is_default(&route, false), expected, "{route}");
    }
    assert!(!is_default("", true) && !is_default("", false));
}
