use super::per_second;

#[test]
fn rates_are_short() {
    for (rate, text) in [
        (0.0, "0"),
        (0.01, "<0.1"),
        (0.1, "0.1"),
        (9.94, "9.9"),
        (9.96, "10"),
        (20_000.4, "20000"),
        (99_999.4, "99999"),
        (123_456.0, "123k"),
    ] {
        assert_eq!(per_second(rate), text);
    }
}
