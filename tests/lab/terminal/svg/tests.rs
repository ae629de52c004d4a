use std::num::NonZeroU16;

use super::svg;

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
