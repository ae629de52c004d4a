//! Puts the compiled kernel programs where the crate can include them.
//!
//! They are built by `cargo xtask build`, with another compiler than this crate; plain cargo
//! commands find what that left in `target/ebpf`.

mod btf;

use std::{env, fs, path::Path, path::PathBuf, time::SystemTime};

fn main() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"))
        .ancestors()
        .nth(2)
        .expect("the crate is in the workspace");
    println!("cargo::rerun-if-env-changed=SIDETRACK_EBPF");
    let object = env::var_os("SIDETRACK_EBPF").map_or_else(
        || root.join("target/ebpf/bpfel-unknown-none/release/sidetrack-ebpf"),
        PathBuf::from,
    );
    println!("cargo::rerun-if-changed={}", object.display());
    let sources = ["ebpf/src", "ebpf/Cargo.toml", "common/src"].map(|dir| root.join(dir));
    for source in &sources {
        println!("cargo::rerun-if-changed={}", source.display());
    }
    let Ok(built) = fs::metadata(&object).and_then(|meta| meta.modified()) else {
        println!(
            "cargo::error=the kernel programs are not built ({} is missing): run `cargo xtask build`",
            object.display()
        );
        return;
    };
    if sources.iter().any(|source| newest(source) > Some(built)) {
        println!(
            "cargo::warning=the kernel programs are older than their sources: run `cargo xtask build`"
        );
    }
    let mut programs = fs::read(&object).expect("read the kernel programs");
    btf::name_text(&mut programs).expect("name the elements of texts in the kernel programs' BTF");
    let out = Path::new(&env::var_os("OUT_DIR").expect("set by cargo")).join("sidetrack-ebpf");
    fs::write(&out, programs).expect("write the kernel programs to OUT_DIR");
}

/// The latest modification time below a path.
fn newest(path: &Path) -> Option<SystemTime> {
    let meta = fs::metadata(path).ok()?;
    if !meta.is_dir() {
        return meta.modified().ok();
    }
    fs::read_dir(path)
        .ok()?
        .flatten()
        .filter_map(|entry| newest(&entry.path()))
        .max()
}
