//! Foreign text in messages: short, and without anything a terminal would execute.

/// The first 200 characters of a value, with `...` when it is longer.
#[must_use]
pub fn shortened(text: &str) -> String {
    const SHOWN: usize = 200;
    match text.char_indices().nth(SHOWN) {
        Some((cut, _)) => format!("{}...", &text[..cut]),
        None => text.to_owned(),
    }
}

/// [`shortened`] text with control characters escaped.
#[must_use]
pub fn printable(text: &str) -> String {
    let mut printable = String::new();
    for c in shortened(text).chars() {
        if c.is_control() {
            printable.extend(c.escape_default());
        } else {
            printable.push(c);
        }
    }
    printable
}

#[cfg(test)]
mod tests;
