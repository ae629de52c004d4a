use std::collections::BTreeSet;

use super::{Module, names};

fn path(text: &str) -> Module {
    text.split_terminator("::").map(str::to_owned).collect()
}

/// What a text in a module names, of a crate with the modules `a`, `m`, `m::n` and `m::n::x`.
fn used(module: &str, text: &str) -> Vec<String> {
    let modules: BTreeSet<Module> = ["", "a", "m", "m::n", "m::n::x"].map(path).into();
    let found = names(text, &path(module), &modules).uses;
    found.iter().map(|it| it.path.join("::")).collect()
}

#[test]
fn by_crate() {
    assert_eq!(
        used("m", "use crate::a::b; fn f() { crate::c::g() }"),
        ["a::b", "c::g"]
    );
    let group = "use crate::{a::{b, self}, c, d::{e::{f}, g}, VERSION};";
    assert_eq!(
        used("m", group),
        ["a::b", "a", "c", "d::e::f", "d::g", "VERSION"]
    );
    assert_eq!(used("m", "macro { $crate::a::b }"), ["a::b"]);
}

#[test]
fn by_super() {
    assert_eq!(used("m", "use super::{a::b, c};"), ["a::b", "c"]);
    assert_eq!(used("m::n", "use super::a::b;"), ["m::a::b"]);
    assert_eq!(used("m::n", "use super::super::a;"), ["a"]);
    assert_eq!(
        used("m::n", "use super::{b, super::{a, c::d}};"),
        ["m::b", "a", "c::d"]
    );
    assert_eq!(used("m", "pub(super) fn f(x: super::a::T) {}"), ["a::T"]);
}

#[test]
fn by_the_name_of_a_child() {
    assert_eq!(
        used("m", "fn f() { n::g::<T>() + other::h() }"),
        ["m::n::g"]
    );
    assert_eq!(used("m::n", "impl T for x::U {}"), ["m::n::x::U"]);
}

#[test]
fn in_modules_of_the_file() {
    assert_eq!(used("m", "mod tests { use super::a; }"), ["m::a"]);
    assert_eq!(used("m", "mod tests { fn f() {} } use super::a;"), ["a"]);
    assert_eq!(
        used("m", "mod t { mod x { use super::super::super::a; } }"),
        ["a"]
    );
}

#[test]
fn aliases_lead_to_what_was_named() {
    let modules = BTreeSet::from([path("m")]);
    let found = names(
        "use crate::a::{b, c as d};\nfn f() -> impl T + use<'_> { super::e; }",
        &path("m"),
        &modules,
    );
    assert_eq!(found.aliases[&path("m::b")], path("a::b"));
    assert_eq!(found.aliases[&path("m::d")], path("a::c"));
    assert_eq!((found.aliases.len(), found.uses[2].line), (2, 2));
}

#[test]
fn not_in_text() {
    let text = "// crate::a\n/// [`crate::b`]\nconst C: &str = \"crate::c \\\" super::c\"; fn f<'a>(x: &'a str) { let y = ('{', '\\'', '\"', r#\"crate::d\"#); } use crate::e;";
    assert_eq!(used("m", text), ["e"]);
}
