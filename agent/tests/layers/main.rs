//! The order of the agent's modules: `src/lib.rs` lists them from the bottom up, and no module uses one
//! that stands below it in that list. So there are no import circles between them either.

mod source;

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use crate::source::used_modules;

/// A use of a module: who uses it, and where.
type Uses = BTreeMap<(String, String), String>;

fn src() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src")
}

/// The modules as `lib.rs` lists them.
fn order() -> Vec<String> {
    let text = fs::read_to_string(src().join("lib.rs")).expect("lib.rs");
    assert!(
        !text.lines().any(|line| line.contains("use ")),
        "lib.rs re-exports something: a use of it would hide which module is used"
    );
    let declared = text.lines().filter_map(|line| {
        let name = line.trim_start_matches("pub ").strip_prefix("mod ")?;
        name.strip_suffix(';').map(str::to_owned)
    });
    declared.collect()
}

/// Every file below a directory.
fn files(dir: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir).expect("a directory of sources");
    let mut found = Vec::new();
    for entry in entries {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            found.extend(files(&path));
        } else {
            found.push(path);
        }
    }
    found.sort();
    found
}

/// The path of the module that a file is, below the crate; empty for the crate itself and the binary.
fn module_path(relative: &Path) -> Vec<String> {
    let without = relative.with_extension("");
    let mut names: Vec<String> = without
        .iter()
        .map(|name| name.to_string_lossy().into_owned())
        .collect();
    let last = names.last().map(String::as_str);
    let is_root = names.len() == 1 && matches!(last, Some("lib" | "main"));
    if last == Some("mod") || is_root {
        names.pop();
    }
    names
}

/// All uses of one top-level module by another.
fn uses() -> Uses {
    let src = src();
    let mut uses = Uses::new();
    for path in files(&src) {
        let relative = path.strip_prefix(&src).expect("below src");
        let module = module_path(relative);
        let Some(top) = module.first() else { continue };
        let text = fs::read_to_string(&path).expect("a source file");
        for used in used_modules(&text, &module) {
            if &used != top {
                uses.entry((top.clone(), used))
                    .or_insert_with(|| relative.display().to_string());
            }
        }
    }
    uses
}

/// Uses that go up in the order, as sentences.
fn upward(order: &[String], uses: &Uses) -> Vec<String> {
    let position = |module: &String| order.iter().position(|known| known == module);
    uses.iter()
        .filter_map(|((by, used), file)| {
            // What is no module, such as a constant of the crate, has no position.
            let used_at = position(used)?;
            let by_at = position(by).unwrap_or_default();
            (by_at < used_at).then(|| {
                format!("{file}: `{by}` uses `{used}`, which stands below it in src/lib.rs")
            })
        })
        .collect()
}

#[test]
fn no_module_uses_one_below_it() {
    let (order, uses) = (order(), uses());
    assert!(
        order.len() > 5 && uses.len() > order.len(),
        "{order:?} {uses:?}"
    );
    let wrong = upward(&order, &uses);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn every_module_has_its_place() {
    let order = order();
    for path in files(&src()) {
        let module = module_path(path.strip_prefix(src()).expect("below src"));
        if let Some(top) = module.first() {
            assert!(order.contains(top), "{} is in no module", path.display());
        }
    }
}

#[test]
fn an_upward_use_is_noticed() {
    let order = ["low", "high"].map(str::to_owned);
    let by = |by: &str, used: &str| {
        Uses::from([((by.to_owned(), used.to_owned()), "a file".to_owned())])
    };
    assert_eq!(upward(&order, &by("low", "high")).len(), 1);
    assert!(upward(&order, &by("high", "low")).is_empty());
    assert!(upward(&order, &by("low", "VERSION")).is_empty());
}
