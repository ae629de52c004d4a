use super::{names_any, opens};

#[test]
fn whole_names_and_a_star_open_it() {
    for (value, wanted) in [
        ("node-1", true),
        ("node-2, node-1", true),
        ("*", true),
        ("node-10", false),
        ("node", false),
        ("", false),
        ("node-1 node-2", false),
    ] {
        assert_eq!(opens(value, Some("node-1")), wanted, "{value}");
    }
    assert!(opens("*", None) && !opens("node-1", None) && !opens("", None));
    assert!(names_any("*") && names_any(" ,node-1") && !names_any("") && !names_any(", "));
}
