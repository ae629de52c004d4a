use super::color;

#[test]
fn colors() {
    for (is_terminal, no_color, wanted) in [
        (true, None, true),
        (true, Some(""), true),
        (true, Some("1"), false),
        (false, None, false),
        (false, Some("1"), false),
    ] {
        let found = color(is_terminal, no_color.map(str::as_ref));
        assert_eq!(found, wanted, "{is_terminal} {no_color:?}");
    }
}
