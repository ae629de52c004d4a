//! Text in messages: counts, and foreign text, which is short and without anything a terminal would execute.

/// A number of things: `1 pod`, `2 pods`.
#[must_use]
pub fn counted(count: u64, what: &str) -> String {
    let plural = if count == 1 { "" } else { "s" };
    format!("{count} {what}{plural}")
}

/// A Boolean as Go's `strconv.ParseBool` reads it; `None` for any other text.
#[must_use]
pub(crate) fn boolean(text: &str) -> Option<bool> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Some(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Some(false),
        _ => None,
    }
}

/// The first 200 characters of a value, with `...` when it is longer.
#[must_use]
pub fn shortened(text: &str) -> String {
    cut(text, 200)
}

/// The first characters of a text, with `...` when it is longer.
#[must_use]
pub fn cut(text: &str, max_chars: usize) -> String {
    match text.char_indices().nth(max_chars) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text.to_owned(),
    }
}

/// Characters of the longest `namespace/name` that Kubernetes allows. What another program calls a name may be longer.
pub const LONGEST_NAME: usize = 63 + 1 + 253;

/// [`shortened`] text with control characters escaped.
#[must_use]
pub fn printable(text: &str) -> String {
    escaped(&shortened(text))
}

/// Whether a terminal obeys a character rather than showing it: controls, and those that change the order of what is
/// around them (Unicode's Bidi_Control) or end a line.
fn is_obeyed(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// All of a text, with such characters escaped as in JSON, of which it may be; its lines and tabs stay.
#[must_use]
pub fn escaped_lines(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\n' | '\t' => escaped.push(c),
            c if is_obeyed(c) => escaped.push_str(&format!("\\u{:04x}", u32::from(c))),
            c => escaped.push(c),
        }
    }
    escaped
}

/// All of a text, with what a terminal would obey escaped.
#[must_use]
pub fn escaped(text: &str) -> String {
    let mut escaped = String::new();
    for c in text.chars() {
        if is_obeyed(c) {
            escaped.extend(c.escape_default());
        } else {
            escaped.push(c);
        }
    }
    escaped
}

#[cfg(test)]
mod tests;
