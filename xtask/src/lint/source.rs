//! Rust sources as text: their files, their tokens, and the paths of the crate that they name.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result};

/// A path of a module below its crate.
pub type Module = Vec<String>;

/// A source file.
#[derive(Debug)]
pub struct File {
    /// Where it is, below the checkout.
    pub path: PathBuf,
    /// What is in it.
    pub text: String,
}

/// Every source file below a directory of the checkout, except what cargo has built.
pub fn files(root: &Path, below: &Path) -> Result<Vec<File>> {
    let mut found = Vec::new();
    let entries =
        fs::read_dir(root.join(below)).with_context(|| format!("read {}", below.display()))?;
    for entry in entries {
        let entry = entry?;
        let path = below.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            if entry.file_name() != "target" {
                found.extend(files(root, &path)?);
            }
        } else if path.extension().is_some_and(|it| it == "rs") {
            let text = fs::read_to_string(entry.path())?;
            found.push(File { path, text });
        }
    }
    found.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(found)
}

/// A name, a string or character, `::` or a single sign.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Token<'a> {
    /// It.
    pub text: &'a str,
    /// The line it is on, from 1.
    pub line: usize,
}

/// A path of the crate that a file names.
#[derive(Debug, PartialEq, Eq)]
pub struct Use {
    /// The line it is on, from 1.
    pub line: usize,
    /// The whole path, from the crate's root.
    pub path: Module,
    /// Whether it is only handed on, by `pub use`.
    pub is_exported: bool,
}

/// What one file names.
#[derive(Debug, Default)]
pub struct Names {
    /// The paths, in the order of the text.
    pub uses: Vec<Use>,
    /// Names that `use` brings into a module, and what they stand for.
    pub aliases: BTreeMap<Module, Module>,
}

/// Reads one file, which is the module `module`; `modules` are all of its crate.
pub fn names(text: &str, module: &[String], modules: &BTreeSet<Module>) -> Names {
    let tokens = tokens(text);
    let mut reader = Reader {
        tokens: &tokens,
        found: Names::default(),
        here: module.to_vec(),
        item: Item::Code,
    };
    // Inline modules that are open, by the depth of their braces.
    let mut inline = Vec::new();
    let mut depth = 0;
    let mut at = 0;
    while at < tokens.len() {
        let next = |offset: usize| tokens.get(at + offset).map(|token| token.text);
        let is_path = next(1) == Some("::") && (at == 0 || tokens[at - 1].text != "::");
        match tokens[at].text {
            "{" => depth += 1,
            "}" => {
                if inline.last() == Some(&depth) {
                    inline.pop();
                    reader.here.pop();
                }
                depth -= 1;
            }
            "mod" if next(2) == Some("{") => {
                inline.push(depth + 1);
                reader.here.extend(next(1).map(str::to_owned));
            }
            // Not the captured lifetimes of a type: `use<'_>`.
            "use" if next(1) != Some("<") => {
                let is_exported = at > 0 && matches!(tokens[at - 1].text, "pub" | ")");
                reader.item = if is_exported { Item::Export } else { Item::Use };
            }
            ";" => reader.item = Item::Code,
            "crate" | "super" | "self" if is_path => {
                at = reader.path(at, reader.here.clone());
                continue;
            }
            name if is_path => {
                let mut child = reader.here.clone();
                child.push(name.to_owned());
                if modules.contains(&child) {
                    at = reader.path(at, reader.here.clone());
                    continue;
                }
            }
            _ => {}
        }
        at += 1;
    }
    reader.found
}

/// Where a path stands.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Item {
    Code,
    Use,
    Export,
}

struct Reader<'a> {
    tokens: &'a [Token<'a>],
    found: Names,
    here: Module,
    item: Item,
}

impl Reader<'_> {
    fn text(&self, at: usize) -> &str {
        self.tokens.get(at).map_or("", |token| token.text)
    }

    /// Reads a path, or a group of them, that starts at `at` below `module`; returns where it ends.
    fn path(&mut self, at: usize, mut module: Module) -> usize {
        match self.text(at) {
            "{" => return self.group(at + 1, &module),
            "crate" => module.clear(),
            "super" => {
                module.pop();
            }
            "self" => {}
            name => module.push(name.to_owned()),
        }
        if self.text(at + 1) == "::" && self.text(at + 2) != "<" {
            return self.path(at + 2, module);
        }
        let is_renamed = self.text(at + 1) == "as";
        let end = if is_renamed { at + 3 } else { at + 1 };
        if self.item != Item::Code
            && let Some(last) = module.last()
        {
            let name = if is_renamed { self.text(at + 2) } else { last };
            let mut alias = self.here.clone();
            alias.push(name.to_owned());
            if alias != module {
                self.found.aliases.insert(alias, module.clone());
            }
        }
        self.found.uses.push(Use {
            line: self.tokens[at].line,
            path: module,
            is_exported: self.item == Item::Export,
        });
        end
    }

    /// Reads what is in `{...}`, from behind its `{`; returns where it ends.
    fn group(&mut self, mut at: usize, module: &Module) -> usize {
        while at < self.tokens.len() {
            match self.text(at) {
                "}" => return at + 1,
                "," => at += 1,
                _ => at = self.path(at, module.clone()),
            }
        }
        at
    }
}

/// The tokens of a text, without comments.
pub fn tokens(text: &str) -> Vec<Token<'_>> {
    let mut tokens = Vec::new();
    let mut rest = text;
    let mut line = 1;
    while let Some(first) = rest.chars().next() {
        let is_name = |sign: char| sign.is_alphanumeric() || sign == '_';
        let (length, is_token) = if rest.starts_with("//") {
            (rest.find('\n').unwrap_or(rest.len()), false)
        } else if let Some(length) = literal(rest) {
            (length, true)
        } else if is_name(first) {
            let end = rest.find(|sign: char| !is_name(sign));
            (end.unwrap_or(rest.len()), true)
        } else if rest.starts_with("::") {
            (2, true)
        } else {
            (first.len_utf8(), !first.is_whitespace())
        };
        let (text, behind) = rest.split_at(length);
        if is_token {
            tokens.push(Token { text, line });
        }
        line += text.matches('\n').count();
        rest = behind;
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
