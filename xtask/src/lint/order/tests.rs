use super::{super::source::File, Module, Sources, TABLE, forbidden_dependencies, lines, root};
use crate::workspace::{Dependency, Package};

fn file(path: &str, text: &str) -> File {
    File {
        path: path.into(),
        text: text.to_owned(),
    }
}

fn arrows(files: &[File], parent: &str, order: &[&str]) -> Vec<String> {
    let parent: Module = parent.split_terminator("::").map(str::to_owned).collect();
    Sources::read("a/src", files).forbidden_arrows(&parent, order)
}

#[test]
fn a_use_of_what_stands_above_is_refused_with_its_line() {
    let files = [
        file(
            "a/src/lib.rs",
            "pub mod high;\npub mod low;\npub use self::high::H;",
        ),
        file("a/src/high.rs", "use crate::low::L;\npub struct H;"),
        file("a/src/low.rs", "pub struct L;\n\nuse super::high::H;"),
    ];
    let wrong = ["a/src/low.rs:3: low -> high"];
    assert_eq!(arrows(&files, "", &["self", "high", "low"]), wrong);
    let wrong = ["a/src/high.rs:1: high -> low"];
    assert_eq!(arrows(&files, "", &["self", "low", "high"]), wrong);
}

#[test]
fn a_name_handed_on_by_another_module_does_not_hide_the_arrow() {
    let files = [
        file(
            "a/src/lib.rs",
            "mod high;\nmod low;\npub use self::high::H as Handed;",
        ),
        file("a/src/high.rs", "pub struct H;"),
        file("a/src/low.rs", "fn f() { crate::Handed }"),
    ];
    let wrong = ["a/src/low.rs:1: low -> high"];
    assert_eq!(arrows(&files, "", &["self", "high", "low"]), wrong);
}

#[test]
fn a_module_below_has_an_order_of_its_own() {
    let files = [
        file("a/src/lib.rs", "mod outer;"),
        file("a/src/outer.rs", "mod one;\nmod two;\nfn f() { one::g() }"),
        file("a/src/outer/one.rs", "use super::{f, two::T};"),
        file("a/src/outer/two.rs", "use super::one;"),
        file("a/src/outer/two/tests.rs", "use super::super::one::all;"),
    ];
    let wrong = [
        "a/src/outer/one.rs:1: outer::one -> outer",
        "a/src/outer/two.rs:1: outer::two -> outer::one",
    ];
    assert_eq!(arrows(&files, "outer", &["self", "one", "two"]), wrong);
    let wrong = [
        "a/src/outer.rs:3: outer -> outer::one",
        "a/src/outer/one.rs:1: outer::one -> outer::two",
    ];
    assert_eq!(arrows(&files, "outer", &["two", "one", "self"]), wrong);
}

#[test]
fn every_module_has_a_place_and_every_place_a_module() {
    let files = [
        file("a/src/lib.rs", ""),
        file("a/src/here.rs", ""),
        file("a/src/here/tests.rs", ""),
    ];
    let sources = Sources::read("a/src", &files);
    assert!(sources.without_place(&[], &["self", "here"]).is_empty());
    assert_eq!(
        sources.without_place(&[], &["self", "gone"]),
        ["here has no place in the table", "there is no gone"]
    );
}

#[test]
fn a_dependency_that_is_not_listed_is_refused() {
    let table = [(vec!["xtask"], vec!["low"])];
    let mut package = Package {
        name: "xtask".to_owned(),
        manifest_path: root().join("xtask/Cargo.toml"),
        rust_version: None,
        source: None,
        dependencies: vec![Dependency {
            name: "low".to_owned(),
            path: Some("low".into()),
        }],
    };
    assert!(forbidden_dependencies(&package, &table).unwrap().is_empty());
    package.dependencies[0].name = "anyhow".to_owned();
    let wrong = forbidden_dependencies(&package, &table).unwrap();
    assert!(wrong[0].starts_with("xtask/Cargo.toml:") && wrong[0].ends_with("xtask -> anyhow"));
    package.name = "other".to_owned();
    assert_eq!(forbidden_dependencies(&package, &table).unwrap().len(), 1);
}

#[test]
fn the_order_of_crates_has_no_circles() {
    let crates = lines("crate ");
    assert!(crates.iter().any(|(name, _)| name[0] == "xtask"));
    for (at, (name, allowed)) in crates.iter().enumerate() {
        let below = |it: &&str| crates[..at].iter().any(|(other, _)| other[0] == *it);
        assert!(allowed.iter().all(below), "{name:?}");
    }
    let modules = lines("modules ");
    assert!(!modules.is_empty());
    assert!(
        modules
            .iter()
            .all(|(name, _)| root().join(name[0]).is_dir())
    );
}

#[test]
fn every_line_of_the_table_is_understood() {
    let lines = TABLE.lines().filter(|line| !line.is_empty());
    for line in lines.filter(|line| !line.starts_with('#')) {
        let is_known = line.starts_with("crate ") || line.starts_with("modules ");
        assert!(is_known && line.contains(':'), "{line}");
    }
}
