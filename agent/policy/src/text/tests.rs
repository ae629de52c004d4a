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
