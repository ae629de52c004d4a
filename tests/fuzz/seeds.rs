//! The committed seeds of the fuzz targets, in the ordinary test run: quick, and it keeps the
//! checks in step with what they check.

#[path = "src/lib.rs"]
mod checks;

use std::fs;

fn replay(target: &str, check: fn(&[u8])) {
    let dir = lab::deploy::checkout("tests/fuzz/seeds").join(target);
    let mut seeds = 0;
    for entry in fs::read_dir(dir).expect("the seeds") {
        let path = entry.expect("a seed").path();
        println!("{}", path.display());
        check(&fs::read(&path).expect("a readable seed"));
        seeds += 1;
    }
    assert!(seeds > 0, "{target} has no seeds");
}

#[test]
fn policy() {
    replay("policy", checks::policy::check);
}

#[test]
fn netlink() {
    replay("netlink", checks::netlink::check);
}

#[test]
fn proc() {
    replay("proc", checks::proc::check);
}

#[test]
fn manifest() {
    replay("manifest", checks::manifest::check);
}

#[test]
fn webhook() {
    replay("webhook", checks::webhook::check);
}
