use super::{Row, rows, table};

fn row(path: &str, default: &str, comment: &str) -> Row {
    Row {
        path: path.to_owned(),
        default: default.to_owned(),
        comment: comment.to_owned(),
    }
}

#[test]
fn groups_lists_and_comments() {
    let text = "\
# Of nothing.

# The group.
a:
  # One
  # value.
  b: 1
  c:
    d: {e: \"f\"}
t:
- operator: Exists
- key: k
last: \"\"
";
    assert_eq!(
        rows(text).expect("values"),
        [
            row("a", "", "The group."),
            row("a.b", "1", "One value."),
            row("a.c.d", "{e: \"f\"}", ""),
            row("t", "- operator: Exists, - key: k", ""),
            row("last", "\"\"", ""),
        ]
    );
}

#[test]
fn cells_do_not_end_early() {
    let text = table(&[row("a", "x|y", "one|two")]);
    assert!(text.ends_with("| `a` | `x\\|y` | one\\|two |\n"), "{text}");
}

#[test]
fn other_yaml_is_an_error() {
    assert!(rows("just words\n").is_err());
    assert!(rows("- a\n").is_err());
}
