//! Public names that nothing uses. The compiler reports private ones, and of public ones none.
//!
//! A name counts as used where any other text of code has it, so two items of one name hide each other. Unit tests
//! do not count: what only they use is no part of the product.

use std::{
    collections::HashMap,
    path::{Path, PathBuf},
};

use anyhow::{Result, ensure};

use super::source::{File, Token, tokens};

/// What stands between `pub` and a name.
const KINDS: [&str; 11] = [
    "async", "const", "enum", "extern", "fn", "static", "struct", "trait", "type", "union",
    "unsafe",
];

/// Fails with every one.
pub fn check(files: &[File]) -> Result<()> {
    let unused = unused(files);
    ensure!(
        unused.is_empty(),
        "unused public names:\n{}",
        unused.join("\n")
    );
    Ok(())
}

fn unused(files: &[File]) -> Vec<String> {
    let mut uses: HashMap<&str, usize> = HashMap::new();
    let mut defined = Vec::new();
    for file in files.iter().filter(|file| !is_unit_test(&file.path)) {
        let tokens = tokens(&file.text);
        for (at, token) in tokens.iter().enumerate() {
            // Words of a string count: programs of the kernel are looked up by their names.
            for word in token
                .text
                .split(|sign: char| !sign.is_alphanumeric() && sign != '_')
            {
                *uses.entry(word).or_default() += 1;
            }
            if token.text == "pub"
                && let Some(name) = defined_name(&tokens[at + 1..])
            {
                defined.push((&file.path, name));
            }
        }
    }
    // The agent makes the name of a hook's program of the hook's.
    let is_of_hook = |name: &str| {
        let hook = name.strip_prefix("st_");
        hook.is_some_and(|hook| uses.contains_key(hook))
    };
    defined.retain(|(_, name)| uses.get(name.text) == Some(&1) && !is_of_hook(name.text));
    let text = |(path, name): (&PathBuf, Token<'_>)| {
        format!(
            "{}:{}: nothing uses {}",
            path.display(),
            name.line,
            name.text
        )
    };
    defined.into_iter().map(text).collect()
}

/// The name of the item that begins behind `pub`; none of a field or of `pub use`.
fn defined_name<'a>(mut tokens: &[Token<'a>]) -> Option<Token<'a>> {
    if tokens.first()?.text == "(" {
        let end = tokens.iter().position(|token| token.text == ")")?;
        tokens = &tokens[end + 1..];
    }
    let words = tokens
        .iter()
        .take_while(|token| KINDS.contains(&token.text));
    match words.count() {
        0 => None,
        count => tokens.get(count).copied(),
    }
}

/// Whether a file is part of a crate's unit tests.
fn is_unit_test(path: &Path) -> bool {
    let mut below_src = path.iter().skip_while(|name| *name != "src");
    below_src.any(|name| {
        ["tests", "tests.rs", "fixture.rs"]
            .iter()
            .any(|it| name == *it)
    })
}

#[cfg(test)]
mod tests;
