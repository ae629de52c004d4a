//! Text in lines of a width.

/// What continues a line is indented by this.
const INDENT: &str = "  ";

/// A text in lines of at most `width` characters, broken between words where that is possible.
pub fn wrapped(text: &str, width: usize) -> Vec<String> {
    let width = width.max(INDENT.len() + 1);
    let mut lines = Vec::new();
    let mut line = String::new();
    let mut length = 0;
    for word in text.split(' ') {
        let mut rest = word;
        loop {
            let blank = usize::from(length > 0 && line != INDENT);
            let long = rest.chars().count();
            if length + blank + long <= width {
                if blank > 0 {
                    line.push(' ');
                }
                line.push_str(rest);
                length += blank + long;
                break;
            }
            let is_empty = length == 0 || line == INDENT;
            if is_empty {
                // A word that no line has room for.
                let room = width - length;
                let end = rest
                    .char_indices()
                    .nth(room)
                    .map_or(rest.len(), |(at, _)| at);
                line.push_str(&rest[..end]);
                rest = &rest[end..];
            }
            lines.push(std::mem::replace(&mut line, INDENT.to_owned()));
            length = INDENT.len();
        }
    }
    lines.push(line);
    lines
}

#[cfg(test)]
mod tests;
