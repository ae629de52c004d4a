//! Finds the commands in a page, and the flags in a help text.

/// What a documented command runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Program {
    /// `sidetrack`
    Sidetrack,
    /// `kubectl sidetrack`
    Plugin,
    /// `cargo xtask`
    Xtask,
}

/// The words that call a program, anywhere in a line.
const CALLS: [(&[&str], Program); 4] = [
    (&["kubectl", "sidetrack"], Program::Plugin),
    (&["cargo", "xtask"], Program::Xtask),
    (&["/opt/cni/bin/sidetrack-cni"], Program::Sidetrack),
    (&["sidetrack"], Program::Sidetrack),
];

/// What stands for a value, with one.
const VALUES: [(&str, &str); 6] = [
    ("NAMESPACE/POD", "shop/web-0"),
    ("NAMESPACE", "shop"),
    ("POD", "web-0"),
    ("NAME", "worker-1"),
    ("IP:PORT", "192.0.2.1:80"),
    ("N", "1"),
];

/// A command that a page shows.
#[derive(Debug, PartialEq, Eq)]
pub struct Documented {
    /// What it calls.
    pub program: Program,
    /// Its arguments.
    pub words: Vec<String>,
    /// Whether it stands in a sentence.
    pub is_inline: bool,
    /// The first line of it in the page, from 1.
    pub line: usize,
}

/// Every command of a page, in blocks of code and in sentences.
pub fn of(page: &str) -> Vec<Documented> {
    let mut found = Vec::new();
    for block in blocks(page) {
        // Beside commands with a prompt stands what they print.
        let has_prompt = block.iter().any(|(_, line)| line.starts_with("$ "));
        let mut lines = block.into_iter();
        while let Some((number, line)) = lines.next() {
            let Some(first) = command_line(line, has_prompt) else {
                continue;
            };
            let mut whole = first.to_owned();
            while let Some(start) = whole.strip_suffix('\\') {
                let (_, next) = lines.next().unwrap_or((0, ""));
                whole = format!("{start} {}", next.trim());
            }
            found.extend(calls(&whole, number, false));
        }
    }
    for (number, line) in page.lines().enumerate() {
        if !line.starts_with("    ") {
            let spans = line.split('`').skip(1).step_by(2);
            found.extend(spans.flat_map(|span| calls(span, number + 1, true)));
        }
    }
    found
}

/// A flag of a command, with its dashes.
#[derive(Debug, PartialEq, Eq)]
pub struct Flag {
    /// For instance `--output`.
    pub long: String,
    /// For instance `-o`.
    pub short: Option<String>,
}

impl Flag {
    /// Whether a text names it.
    pub fn is_in(&self, text: &str) -> bool {
        let is_part = |sign: Option<char>| {
            sign.is_some_and(|sign| sign.is_ascii_alphanumeric() || sign == '-')
        };
        let names = [Some(&self.long), self.short.as_ref()];
        names.into_iter().flatten().any(|name| {
            text.match_indices(name.as_str()).any(|(at, _)| {
                let before = text[..at].chars().next_back();
                let after = text[at + name.len()..].chars().next();
                !is_part(before) && !is_part(after)
            })
        })
    }
}

/// The flags in a help text of clap.
pub fn flags_of_help(help: &str) -> impl Iterator<Item = Flag> {
    help.lines().filter_map(|line| {
        let line = line.trim_start();
        let (short, long) = match line.split_once(", ") {
            Some((short, long)) if short.len() == 2 && short.starts_with('-') => {
                (Some(short.to_owned()), long)
            }
            _ => (None, line),
        };
        let name = long.strip_prefix("--")?;
        let end = name.find(|sign: char| !sign.is_ascii_alphanumeric() && sign != '-');
        let long = format!("--{}", &name[..end.unwrap_or(name.len())]);
        Some(Flag { long, short })
    })
}

/// The commands in a help text of clap.
pub fn commands_of_help(help: &str) -> impl Iterator<Item = &str> {
    let listed = help.lines().skip_while(|line| *line != "Commands:");
    let names = listed.skip(1).take_while(|line| line.starts_with("  "));
    names
        // A description that is wrapped stands farther to the right.
        .filter(|line| !line.starts_with("   "))
        .filter_map(|line| line.split_whitespace().next())
        .filter(|name| *name != "help")
}

/// Blocks of code as numbered lines without their indentation.
fn blocks(page: &str) -> Vec<Vec<(usize, &str)>> {
    let mut blocks: Vec<Vec<_>> = vec![Vec::new()];
    let mut is_fenced = false;
    for (number, line) in page.lines().enumerate() {
        let code = if line.trim_start().starts_with("```") {
            is_fenced = !is_fenced;
            None
        } else if is_fenced {
            Some(line)
        } else {
            line.strip_prefix("    ")
        };
        match code {
            Some(code) => blocks
                .last_mut()
                .expect("never empty")
                .push((number + 1, code)),
            None => blocks.push(Vec::new()),
        }
    }
    blocks
}

/// The command of a line, if it is one and not output.
fn command_line(line: &str, has_prompt: bool) -> Option<&str> {
    if has_prompt {
        return line.strip_prefix("$ ");
    }
    (!line.starts_with(' ')).then_some(line)
}

/// The calls of our programs in a line of shell.
fn calls(line: &str, number: usize, is_inline: bool) -> Vec<Documented> {
    let mut found = Vec::new();
    for words in simple_commands(line) {
        let start = CALLS.iter().find_map(|(call, program)| {
            let call_at = |at: usize| {
                words[at..]
                    .iter()
                    .map(String::as_str)
                    .take(call.len())
                    .eq(call.iter().copied())
            };
            // Behind `--` a command is run elsewhere, for instance in a pod.
            let after = words.iter().position(|word| word == "--").map(|at| at + 1);
            let at = [Some(0), after]
                .into_iter()
                .flatten()
                .find(|at| call_at(*at))?;
            Some((at + call.len(), *program))
        });
        if let Some((at, program)) = start {
            let words = words[at..].to_vec();
            found.push(Documented {
                program,
                words,
                is_inline,
                line: number,
            });
        }
    }
    found
}

/// Splits a line of shell into commands and words: quotes, pipes, lists, redirections and comments.
fn simple_commands(line: &str) -> Vec<Vec<String>> {
    let mut commands = vec![Vec::new()];
    let mut word: Option<String> = None;
    let mut quote = None;
    let mut is_target = false;
    for sign in line.chars().chain([' ']) {
        match (quote, sign) {
            (Some(open), _) if sign == open => quote = None,
            (Some(_), _) => word.get_or_insert_default().push(sign),
            (None, '\'' | '"') => {
                quote = Some(sign);
                word.get_or_insert_default();
            }
            (None, '#') if word.is_none() => break,
            (None, ' ' | '|' | ';' | '&' | '>' | '<' | '(' | ')') => {
                if let Some(word) = word.take()
                    && !std::mem::take(&mut is_target)
                {
                    commands.last_mut().expect("never empty").push(word);
                }
                match sign {
                    ' ' => {}
                    '>' | '<' => is_target = true,
                    _ => commands.push(Vec::new()),
                }
            }
            (None, _) => word.get_or_insert_default().push(sign),
        }
    }
    for words in &mut commands {
        let shown = std::mem::take(words);
        words.extend(shown.iter().map(|word| filled_in(word)));
    }
    commands.retain(|words| !words.is_empty());
    commands
}

/// A word as it could be typed: without the brackets around what may be omitted and the backslash before a bar in a
/// table, and with a value where a page names one in capitals.
fn filled_in(word: &str) -> String {
    let may_be_omitted =
        |inner: &&str| inner.starts_with(|sign: char| sign == '-' || sign.is_ascii_uppercase());
    let word = word.trim_end_matches('\\');
    let word = match word.strip_prefix('[').filter(may_be_omitted) {
        Some(inner) => inner.trim_end_matches(']'),
        None if !word.contains('[') => word.trim_end_matches(']'),
        None => word,
    };
    VALUES
        .iter()
        .find_map(|(name, value)| (word == *name).then_some(*value))
        .unwrap_or(word)
        .to_owned()
}

#[cfg(test)]
mod tests;
