//! The order of crates and of modules: what `order/table.txt` says, held against the manifests and the sources.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};

use anyhow::{Result, ensure};

use super::source::{self, File, Module, Names};
use crate::{
    run::root,
    workspace::{self, Package},
};

/// Lines `crate NAME: CRATES`, and `modules SOURCES ROOM: MODULES`.
const TABLE: &str = include_str!("order/table.txt");
/// Stands in the table for the file beside the directory, or for the crate's root.
const PARENT: &str = "self";
/// Modules without a place in the order: tests, and what only tests use.
const TESTS: [&str; 2] = ["fixture", "tests"];

/// Lines of the table of a kind: the words before the colon, and those after it.
fn lines(kind: &str) -> Vec<(Vec<&'static str>, Vec<&'static str>)> {
    let words = |text: &'static str| text.split_whitespace().collect();
    let lines = TABLE.lines().filter_map(|line| line.strip_prefix(kind));
    let parts = lines.filter_map(|line| line.rsplit_once(':'));
    parts
        .map(|(name, listed)| (words(name), words(listed)))
        .collect()
}

/// Fails with every arrow that the table forbids.
pub fn check(files: &[File]) -> Result<()> {
    let mut wrong = BTreeSet::new();
    let table = lines("crate ");
    for package in workspace::packages(Path::new("Cargo.toml"))? {
        wrong.extend(forbidden_dependencies(&package, &table)?);
    }
    let mut crates: BTreeMap<&str, Sources<'_>> = BTreeMap::new();
    for (name, order) in &lines("modules ") {
        let (src, parent) = (name[0], name.get(1));
        let sources = crates
            .entry(src)
            .or_insert_with(|| Sources::read(src, files));
        let parent = parent.into_iter().flat_map(|parent| parent.split("::"));
        let parent: Module = parent.map(str::to_owned).collect();
        let missing = sources.without_place(&parent, order);
        wrong.extend(missing.into_iter().map(|it| format!("{src}: {it}")));
        wrong.extend(sources.forbidden_arrows(&parent, order));
    }
    ensure!(
        wrong.is_empty(),
        "the table in xtask/src/lint/order/table.txt forbids:\n{}",
        Vec::from_iter(wrong).join("\n")
    );
    Ok(())
}

/// Dependencies of a package of the workspace on others that the table does not list.
fn forbidden_dependencies(
    package: &Package,
    table: &[(Vec<&str>, Vec<&str>)],
) -> Result<Vec<String>> {
    if package.source.is_some() {
        return Ok(Vec::new());
    }
    let manifest = package
        .manifest_path
        .strip_prefix(root())
        .unwrap_or(&package.manifest_path);
    let Some((_, allowed)) = table.iter().find(|(name, _)| name[0] == package.name) else {
        return Ok(vec![format!(
            "{}: {} is not in the table",
            manifest.display(),
            package.name
        )]);
    };
    let text = fs::read_to_string(&package.manifest_path)?;
    let own = package.dependencies.iter().filter(|it| it.path.is_some());
    let forbidden = own.filter(|it| !allowed.contains(&it.name.as_str()));
    Ok(forbidden
        .map(|dependency| {
            let mut lines = text.lines();
            let line = lines
                .position(|line| line.starts_with(&dependency.name))
                .map_or(0, |at| at + 1);
            format!(
                "{}:{line}: {} -> {}",
                manifest.display(),
                package.name,
                dependency.name
            )
        })
        .collect())
}

/// The sources of one crate.
#[derive(Debug)]
struct Sources<'a> {
    modules: BTreeSet<Module>,
    files: Vec<(&'a File, Module, Names)>,
    aliases: BTreeMap<Module, Module>,
}

impl<'a> Sources<'a> {
    fn read(src: &str, files: &'a [File]) -> Self {
        let own = files.iter().filter_map(|file| {
            let below = file.path.strip_prefix(src).ok()?;
            Some((file, module_of(below)))
        });
        let own: Vec<_> = own.collect();
        let modules: BTreeSet<Module> = own.iter().map(|(_, module)| module.clone()).collect();
        let named = own.into_iter().map(|(file, module)| {
            let names = source::names(&file.text, &module, &modules);
            (file, module, names)
        });
        let files: Vec<_> = named.collect();
        let aliases = files
            .iter()
            .flat_map(|(.., names)| names.aliases.clone())
            .collect();
        Self {
            modules,
            files,
            aliases,
        }
    }

    /// The modules of a parent that are not in its order, and places in the order without a module.
    fn without_place(&self, parent: &[String], order: &[&str]) -> Vec<String> {
        let children = self
            .modules
            .iter()
            .filter(|it| it.len() > parent.len() && it.starts_with(parent));
        let children: BTreeSet<&str> = children
            .map(|it| it[parent.len()].as_str())
            .filter(|name| !TESTS.contains(name))
            .collect();
        let listed: BTreeSet<&str> = order
            .iter()
            .copied()
            .filter(|name| *name != PARENT)
            .collect();
        let missing = children
            .difference(&listed)
            .map(|name| format!("{} has no place in the table", show(parent, name)));
        let gone = listed
            .difference(&children)
            .map(|name| format!("there is no {}", show(parent, name)));
        missing.chain(gone).collect()
    }

    /// Uses of a module that stands above the one that uses it.
    fn forbidden_arrows(&self, parent: &[String], order: &[&str]) -> Vec<String> {
        let place = |name: &str| order.iter().position(|it| *it == name);
        let mut wrong = Vec::new();
        for (file, module, names) in &self.files {
            // Unit tests may use what stands above: nothing is built on them.
            if module.iter().any(|name| TESTS.contains(&name.as_str())) {
                continue;
            }
            let Some(from) = self.within(parent, module) else {
                continue;
            };
            for it in names.uses.iter().filter(|it| !it.is_exported) {
                let path = self.resolved(&it.path);
                if let Some(to) = self.within(parent, &path)
                    && let (Some(from_place), Some(to_place)) = (place(from), place(to))
                    && to_place < from_place
                {
                    let (path, line) = (file.path.display(), it.line);
                    wrong.push(format!(
                        "{path}:{line}: {} -> {}",
                        show(parent, from),
                        show(parent, to)
                    ));
                }
            }
        }
        wrong
    }

    /// The module of a parent that a path leads to; [`PARENT`] for an item of the parent itself.
    fn within<'p>(&self, parent: &[String], path: &'p [String]) -> Option<&'p str> {
        let name = path.strip_prefix(parent)?.first();
        let is_module = |name: &&String| {
            let module: Module = parent.iter().chain([*name]).cloned().collect();
            self.modules.contains(&module)
        };
        Some(name.filter(is_module).map_or(PARENT, String::as_str))
    }

    /// A path without names that `use` has brought into a module on the way.
    fn resolved(&self, path: &[String]) -> Module {
        let mut path = path.to_vec();
        // An alias may lead to another one; more than a few would be a circle.
        for _ in 0..8 {
            let alias =
                (1..=path.len()).find_map(|end| Some((end, self.aliases.get(&path[..end])?)));
            let Some((end, target)) = alias else { break };
            path = target.iter().chain(&path[end..]).cloned().collect();
        }
        path
    }
}

/// The module that a file is, below its crate.
fn module_of(below_src: &Path) -> Module {
    let without = below_src.with_extension("");
    let mut names: Module = without
        .iter()
        .map(|name| name.to_string_lossy().into_owned())
        .collect();
    if names == ["lib"] || names == ["main"] {
        names.clear();
    }
    names
}

/// A module of a parent, as a path.
fn show(parent: &[String], name: &str) -> String {
    match (parent.is_empty(), name) {
        (true, PARENT) => "the crate's root".to_owned(),
        (true, name) => name.to_owned(),
        (false, PARENT) => parent.join("::"),
        (false, name) => format!("{}::{name}", parent.join("::")),
    }
}

#[cfg(test)]
mod tests;
