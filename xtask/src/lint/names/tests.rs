use super::{super::source::File, unused};

fn file(path: &str, text: &str) -> File {
    File {
        path: path.into(),
        text: text.to_owned(),
    }
}

#[test]
fn what_only_unit_tests_use_is_unused() {
    let code = "pub fn one() { two() }\npub(crate) const fn two() {}\npub const THREE: u8 = 3;\npub struct Four { pub five: u8 }";
    let files = [
        file("a/src/lib.rs", code),
        file("a/src/lib/tests.rs", "one(); THREE"),
        file("tests/kernel/main.rs", "Four"),
    ];
    let found = ["one", "THREE"].map(|name| {
        let line = if name == "one" { 1 } else { 3 };
        format!("a/src/lib.rs:{line}: nothing uses {name}")
    });
    assert_eq!(unused(&files), found);
}
