//! `cargo xtask docs`: the documentation as a site with search, by mdBook.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result};

use crate::{
    crates::Program,
    run::{answer, must, root},
};

const MDBOOK: Program = Program {
    name: "mdbook",
    version: "0.5.4",
    options: &["--debug", "--no-default-features", "--features", "search"],
    estimate: "a minute",
};

/// Without the preprocessor that renames READMEs, and leaves links to them as they were.
const BOOK: &str = r#"
[book]
title = "sidetrack"
language = "en"

[build]
create-missing = false
use-default-preprocessors = false
"#;

/// What pages link to.
const FILES: [&str; 4] = ["*.md", "docs", "LICENSE-*", "deploy/config"];

/// Pages beside those of `docs`, with their titles.
const PROJECT: [(&str, &str); 9] = [
    ("docs/SUMMARY.md", "All pages"),
    ("CONTRIBUTING.md", "Contributing"),
    ("ROADMAP.md", "Roadmap"),
    ("CHANGELOG.md", "Changelog"),
    ("SECURITY.md", "Report a vulnerability"),
    ("MAINTAINERS.md", "Maintainers"),
    ("CODE_OF_CONDUCT.md", "Code of conduct"),
    ("LICENSE.md", "License"),
    ("deploy/chart/README.md", "Values of the chart"),
];

/// Builds it from the files that git has, in the places where they are, so that links between them stay as they are.
pub fn build() -> Result<()> {
    let mdbook = MDBOOK.install()?;
    let site = root().join("target/docs");
    let source = site.join("src");
    if site.exists() {
        fs::remove_dir_all(&site).with_context(|| format!("remove {}", site.display()))?;
    }
    let mut list = Command::new("git");
    list.current_dir(root()).arg("ls-files").args(FILES);
    let files = answer(&mut list).context("list the files of the checkout with git")?;
    for file in files.lines() {
        copy(&root().join(file), &source.join(file))?;
    }
    let pages = fs::read_to_string(root().join("docs/SUMMARY.md"))?;
    fs::write(source.join("SUMMARY.md"), summary(&pages))?;
    fs::write(site.join("book.toml"), BOOK)?;
    must(Command::new(mdbook).arg("build").arg(&site))?;
    println!("{}", site.join("book/index.html").display());
    Ok(())
}

fn copy(from: &Path, to: &PathBuf) -> Result<()> {
    if let Some(folder) = to.parent() {
        fs::create_dir_all(folder)?;
    }
    fs::copy(from, to).with_context(|| format!("copy {}", from.display()))?;
    Ok(())
}

/// The table of contents of `docs`, seen from the root of the checkout, with the README before it and the other pages after.
fn summary(pages: &str) -> String {
    let pages = pages.replace("](", "](docs/");
    let pages = pages.replacen("# Summary\n", "# Summary\n\n[sidetrack](README.md)\n", 1);
    let more = PROJECT.map(|(file, title)| format!("- [{title}]({file})\n"));
    format!("{pages}\n# Project\n\n{}", more.concat())
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_table_of_contents_leads_into_docs() {
        let made = super::summary("# Summary\n\n# Use\n\n- [Install](install.md)\n");
        let wanted = "# Summary\n\n[sidetrack](README.md)\n\n# Use\n\n- [Install](docs/install.md)\n\n# Project\n\n- [All pages](docs/SUMMARY.md)\n";
        assert!(made.starts_with(wanted), "{made}");
    }
}
