//! Foreign text in messages.

use super::{counted, printable, shortened};

#[test]
fn one_is_singular() {
    let counts = [0, 1, 2].map(|count| counted(count, "connection"));
    assert_eq!(counts, ["0 connections", "1 connection", "2 connections"]);
}

#[test]
fn two_hundred_characters_are_shown() {
    let fits = "\u{e9}".repeat(200);
    assert_eq!(shortened(&fits), fits);
    assert_eq!(shortened(&format!("{fits}x")), format!("{fits}..."));
    assert_eq!(shortened(""), "");
}

#[test]
fn control_characters_are_escaped() {
    assert_eq!(printable("a\u{1b}[2J\tb"), "a\\u{1b}[2J\\tb");
    assert_eq!(printable("caf\u{e9} \"x\""), "caf\u{e9} \"x\"");
    assert_eq!(
        printable(&"x".repeat(201)),
        format!("{}...", "x".repeat(200))
    );
}

#[test]
fn a_terminal_obeys_nothing_of_a_foreign_text() {
    use super::{escaped, escaped_lines};
    let hostile = "a\u{1b}[2Jb\u{202e}c\u{2066}d\r\u{9b}e\u{2028}f";
    let shown = escaped(hostile);
    assert_eq!(
        shown,
        "a\\u{1b}[2Jb\\u{202e}c\\u{2066}d\\r\\u{9b}e\\u{2028}f"
    );
    // JSON stays JSON of the same meaning.
    let json = format!(
        "{{\n\t\"text\": {}\n}}",
        serde_json::json!(hostile.replace('\u{9b}', ""))
    );
    let shown = escaped_lines(&json);
    assert!(
        shown.contains("\\u202e") && shown.contains("\n\t"),
        "{shown}"
    );
    let [before, after] =
        [&json, &shown].map(|text| serde_json::from_str::<serde_json::Value>(text).expect("JSON"));
    assert_eq!(before, after);
    assert_eq!(escaped_lines("\u{1b}]0;x\u{7}"), "\\u001b]0;x\\u0007");
    assert_eq!(escaped_lines("gr\u{fc}n \u{1f600}"), "gr\u{fc}n \u{1f600}");
}
