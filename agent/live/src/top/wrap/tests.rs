use super::wrapped;

#[test]
fn lines_break_between_words() {
    for (text, width, lines) in [
        ("", 10, &[""][..]),
        ("it fits", 7, &["it fits"]),
        (
            "pod shop/web: it hangs",
            12,
            &["pod", "  shop/web:", "  it hangs"],
        ),
        ("net:[4026531840]", 8, &["net:[402", "  653184", "  0]"]),
        ("one two", 0, &["one", "  t", "  w", "  o"]),
    ] {
        assert_eq!(wrapped(text, width), lines, "{text:?}");
    }
}
