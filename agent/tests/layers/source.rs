//! Finds the top-level modules that a source file names, by `crate::` and by `super::`.

use std::collections::BTreeSet;

/// The names right below the crate that a file of the module at `module` uses.
pub fn used_modules(text: &str, module: &[String]) -> BTreeSet<String> {
    let tokens = tokens(text);
    let mut used = BTreeSet::new();
    // Inline modules that are open, each with the depth of its braces.
    let mut inline: Vec<(String, usize)> = Vec::new();
    let mut depth = 0;
    let mut at = 0;
    while at < tokens.len() {
        match tokens[at].as_str() {
            "{" => depth += 1,
            "}" => {
                if inline.last().is_some_and(|(_, open)| *open == depth) {
                    inline.pop();
                }
                depth -= 1;
            }
            "mod" if tokens.get(at + 2).is_some_and(|token| token == "{") => {
                inline.push((tokens[at + 1].clone(), depth + 1));
            }
            "crate" | "super" if tokens.get(at + 1).is_some_and(|token| token == "::") => {
                let names = inline.iter().map(|(name, _)| name.clone());
                let here: Vec<String> = module.iter().cloned().chain(names).collect();
                at = path(&tokens, at, &here, &mut used);
                continue;
            }
            _ => {}
        }
        at += 1;
    }
    used
}

/// Reads a path, or a group of paths, that starts at `at` in the module `here`; returns where it ends.
fn path(tokens: &[String], at: usize, here: &[String], used: &mut BTreeSet<String>) -> usize {
    let Some(token) = tokens.get(at) else {
        return at;
    };
    match token.as_str() {
        "crate" => path(tokens, at + 2, &[], used),
        "super" => {
            let above = &here[..here.len().saturating_sub(1)];
            let is_prefix = tokens.get(at + 1).is_some_and(|token| token == "::");
            path(tokens, at + 1 + usize::from(is_prefix), above, used)
        }
        "self" => at + 1,
        "{" => group(tokens, at, here, used),
        "," | "}" | ";" => at,
        name => {
            // Below a module it is no other top-level module, whatever it is.
            if here.is_empty() {
                used.insert(name.to_owned());
            }
            at + 1
        }
    }
}

/// Reads `{...}` of a use; returns where it ends. Only the first name of each path in it counts.
fn group(tokens: &[String], open: usize, here: &[String], used: &mut BTreeSet<String>) -> usize {
    let mut depth = 0;
    let mut is_first = true;
    let mut at = open;
    while at < tokens.len() {
        match tokens[at].as_str() {
            "{" => {
                depth += 1;
                is_first = depth == 1;
            }
            "}" => {
                depth -= 1;
                if depth == 0 {
                    return at + 1;
                }
            }
            "," => is_first = depth == 1,
            _ if is_first => {
                is_first = false;
                at = path(tokens, at, here, used);
                continue;
            }
            _ => {}
        }
        at += 1;
    }
    at
}

/// Names, `::` and single signs; without comments, strings and characters.
fn tokens(text: &str) -> Vec<String> {
    let mut tokens = Vec::new();
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let length = if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if let Some(length) = literal(rest) {
            length
        } else if first.is_alphanumeric() || first == '_' {
            let end = rest.find(|sign: char| !sign.is_alphanumeric() && sign != '_');
            let name = &rest[..end.unwrap_or(rest.len())];
            tokens.push(name.to_owned());
            name.len()
        } else if rest.starts_with("::") {
            tokens.push("::".to_owned());
            2
        } else {
            if !first.is_whitespace() {
                tokens.push(first.to_string());
            }
            first.len_utf8()
        };
        rest = &rest[length..];
    }
    tokens
}

/// The length of the string or character that the text starts with.
fn literal(text: &str) -> Option<usize> {
    if let Some(raw) = text.strip_prefix('r') {
        let hashes = raw.len() - raw.trim_start_matches('#').len();
        if raw[hashes..].starts_with('"') {
            let end = format!("\"{}", "#".repeat(hashes));
            let inner = &raw[hashes + 1..];
            let length = inner.find(&end).map_or(inner.len(), |at| at + end.len());
            return Some(1 + hashes + 1 + length);
        }
        return None;
    }
    let quote = text
        .chars()
        .next()
        .filter(|sign| matches!(sign, '"' | '\''))?;
    let mut signs = text.char_indices().skip(1);
    while let Some((at, sign)) = signs.next() {
        // A lifetime has no second quote: the first sign behind it is not one of a character.
        if quote == '\'' && sign != '\\' && !text[at + sign.len_utf8()..].starts_with('\'') {
            return None;
        }
        match sign {
            '\\' => {
                signs.next();
                if quote == '\'' {
                    return text[at + 2..].find('\'').map(|end| at + 2 + end + 1);
                }
            }
            sign if sign == quote => return Some(at + 1),
            _ if quote == '\'' => return Some(at + sign.len_utf8() + 1),
            _ => {}
        }
    }
    Some(text.len())
}

#[cfg(test)]
mod tests;
