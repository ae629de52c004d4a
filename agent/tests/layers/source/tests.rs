use super::used_modules;

fn used(module: &[&str], text: &str) -> Vec<String> {
    let module: Vec<String> = module.iter().map(|name| (*name).to_owned()).collect();
    used_modules(text, &module).into_iter().collect()
}

#[test]
fn by_crate() {
    assert_eq!(
        used(&["m"], "use crate::a::b; fn f() { crate::c::g() }"),
        ["a", "c"]
    );
    let group = "use crate::{a::{b, self}, c, d::{e::{f}, g}, VERSION};";
    assert_eq!(used(&["m"], group), ["VERSION", "a", "c", "d"]);
    assert_eq!(used(&["m"], "macro { $crate::a::b }"), ["a"]);
}

#[test]
fn by_super() {
    assert_eq!(used(&["m"], "use super::{a::b, c};"), ["a", "c"]);
    assert!(used(&["m", "n"], "use super::a::b;").is_empty());
    assert_eq!(used(&["m", "n"], "use super::super::a;"), ["a"]);
    assert_eq!(
        used(&["m", "n"], "use super::{b, super::{a, c::d}};"),
        ["a", "c"]
    );
    assert_eq!(used(&["m"], "pub(super) fn f(x: super::a::T) {}"), ["a"]);
}

#[test]
fn in_modules_of_the_file() {
    assert!(used(&["m"], "mod tests { use super::a; }").is_empty());
    assert_eq!(used(&["m"], "mod tests { fn f() {} } use super::a;"), ["a"]);
    assert_eq!(
        used(
            &["m"],
            "mod tests { mod x { use super::super::super::a; } }"
        ),
        ["a"]
    );
}

#[test]
fn not_in_text() {
    let text = "// crate::a\n/// [`crate::b`]\nconst C: &str = \"crate::c \\\" super::c\"; fn f<'a>(x: &'a str) { let y = ('{', '\\'', '\"', r#\"crate::d\"#); } use crate::e;";
    assert_eq!(used(&["m"], text), ["e"]);
}
