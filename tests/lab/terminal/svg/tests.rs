use std::num::NonZeroU16;

use super::svg;

fn picture(bytes: &str) -> String {
    let size = |size| NonZeroU16::new(size).expect("a size");
    let mut parser = vt100::Parser::new(size(4), size(40), 0);
    parser.process(bytes.as_bytes());
    svg(parser.screen(), "a <title>")
}

#[test]
fn text_keeps_its_place_and_colors() {
    let picture = picture("plain\r\n  \x1b[1;31mred & <bold>\x1b[0m \x1b[7mmarked\x1b[0m");
    for part in [
        "<title>a\u{a0}&lt;title&gt;</title>",
        ">plain</text>",
        "fill=\"#ff6b68\" textLength=\"100.8\" lengthAdjust=\"spacingAndGlyphs\" font-weight=\"bold\">red\u{a0}&amp;\u{a0}&lt;bold&gt;</text>",
        // Marked text is drawn the other way around, on a rectangle of its width.
        "width=\"50.4\" height=\"18.0\" fill=\"#d7dce2\"/>",
        "fill=\"#15191e\" textLength=\"50.4\"",
    ] {
        assert!(picture.contains(part), "{part}: {picture}");
    }
    // The second line, third column.
    assert!(picture.contains("<text x=\"26.8\" y=\"41.0\""), "{picture}");
}

#[test]
fn colors_of_all_kinds() {
    let picture = picture("\x1b[38;5;196ma\x1b[38;5;244mb\x1b[38;2;1;2;3mc\x1b[4;2md");
    for part in ["#ff0000", "#808080", "#010203", "<path d=", "opacity"] {
        assert!(picture.contains(part), "{part}: {picture}");
    }
}
