use std::num::NonZeroU16;

use super::{animated, svg};

fn picture(bytes: &str) -> String {
    let size = |size| NonZeroU16::new(size).expect("a size");
    let mut parser = vt100::Parser::new(size(4), size(40), 0);
    parser.process(bytes.as_bytes());
    svg(parser.screen(), "a title")
}

#[test]
fn text_keeps_its_place_and_its_looks() {
    let picture =
        picture("plain\r\n  \x1b[1;31mred & <bold>\x1b[0m \x1b[7;2mmarked\x1b[0m\x1b[2;39Hx");
    for part in [
        "role=\"img\">\n  <title>a title</title>",
        "<tspan>plain",
        "<tspan>  </tspan><tspan class=\"fg-ansi256-001 bold\">red &amp; &lt;bold&gt;</tspan>",
        "dimmed\">marked</tspan>",
        "x</tspan>",
    ] {
        assert!(picture.contains(part), "{part}: {picture}");
    }
}

#[test]
fn colors_of_all_kinds() {
    let picture = picture("\x1b[38;5;196ma\x1b[38;5;244mb\x1b[38;2;1;2;3mc\x1b[4;42md");
    for part in [
        "#FF0000",
        "#808080",
        "#010203",
        "bg-ansi256-002",
        "underline",
    ] {
        assert!(picture.contains(part), "{part}: {picture}");
    }
}

#[test]
fn screens_follow_each_other() {
    let size = |size| NonZeroU16::new(size).expect("a size");
    let mut parser = vt100::Parser::new(size(4), size(40), 0);
    let frames = ["first ", "second"].map(|text| {
        parser.process(text.as_bytes());
        (parser.screen().clone(), 1.0)
    });
    let picture = animated(&frames, "a title").expect("a picture");
    for part in [
        "@keyframes f0 { 0% { visibility: hidden } 0.00% { visibility: visible } 50.00%, 100%",
        "@keyframes f1 { 0% { visibility: hidden } 50.00% { visibility: visible } 100.00%, 100%",
        "animation-name: f1; animation-duration: 2.0s\"><text",
        "first second",
    ] {
        assert!(picture.contains(part), "{part}: {picture}");
    }
    assert_eq!(picture.matches("<title>a title</title>").count(), 1);
    assert!(animated(&[], "a title").is_err());
}
