//! The minimum Rust version: one for every crate, for the toolchain and for the image's build, and enough for every dependency.

use std::{fs, path::Path};

use anyhow::{Context as _, Result, bail};

use crate::{
    run::root,
    workspace::{self, Package},
};

/// Other places that name the version, each as a text in front of it.
const PLACES: [(&str, &str); 4] = [
    ("README.md", "with Rust "),
    ("CONTRIBUTING.md", "with Rust "),
    ("docs/kubectl.md", "needs Rust "),
    ("deploy/Dockerfile", "ENV RUSTUP_TOOLCHAIN="),
];

/// Names every place and package that disagrees.
pub fn check(fuzz: &str) -> Result<()> {
    let mut packages = workspace::packages(Path::new("Cargo.toml"))?;
    packages.extend(workspace::packages(Path::new(fuzz))?);
    let read =
        |file: &str| fs::read_to_string(root().join(file)).with_context(|| format!("read {file}"));
    let manifest = read("Cargo.toml")?;
    let minimum =
        behind(&manifest, "rust-version = \"").context("no rust-version in Cargo.toml")?;
    let mut wrong: Vec<String> = packages
        .iter()
        .filter_map(|it| complaint(it, minimum))
        .collect();
    for (file, before) in PLACES {
        if behind(&read(file)?, before).is_none_or(|named| parse(named) != parse(minimum)) {
            wrong.push(format!("{file}: \"{before}\" is not followed by {minimum}"));
        }
    }
    let toolchain = read("rust-toolchain.toml")?;
    // A name such as stable stands for no version; cargo refuses one that is too old.
    if behind(&toolchain, "channel = \"").is_some_and(|named| parse(named) != parse(minimum)) {
        wrong.push(format!("rust-toolchain.toml: the channel is not {minimum}"));
    }
    wrong.sort();
    wrong.dedup();
    if !wrong.is_empty() {
        bail!(
            "the minimum Rust version is {minimum}:\n{}",
            wrong.join("\n")
        );
    }
    Ok(())
}

fn complaint(package: &Package, minimum: &str) -> Option<String> {
    let named = package.rust_version.as_deref();
    let agrees = if package.source.is_none() {
        named == Some(minimum)
    } else {
        // Without a version a package promises nothing; clippy compiles it in any case.
        named.is_none_or(|named| parse(named) <= parse(minimum))
    };
    let place = package.manifest_path.display();
    let found = named.unwrap_or("none");
    (!agrees).then(|| format!("{place}: {} has rust-version {found}", package.name))
}

/// The version right behind a text.
fn behind<'a>(text: &'a str, before: &str) -> Option<&'a str> {
    let (_, rest) = text.split_once(before)?;
    let end = rest.find(|sign: char| !sign.is_ascii_digit() && sign != '.');
    let version = rest[..end.unwrap_or(rest.len())].trim_end_matches('.');
    (!version.is_empty()).then_some(version)
}

/// Major and minor version.
fn parse(version: &str) -> (u32, u32) {
    let mut numbers = version.split('.').map(|part| part.parse().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
}

#[cfg(test)]
mod tests;
