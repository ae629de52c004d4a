use super::bytes;

#[test]
fn memory_has_a_unit() {
    for (count, text) in [
        (0, "0.0 KiB"),
        (512, "0.5 KiB"),
        (4096, "4.0 KiB"),
        (999 << 10, "999.0 KiB"),
        (1 << 20, "1.0 MiB"),
        (1 << 30, "1.0 GiB"),
        (5 << 40, "5120.0 GiB"),
    ] {
        assert_eq!(bytes(count), text);
    }
}
