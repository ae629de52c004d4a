//! Puts the compiled kernel programs where the crate can include them.
//!
//! They are built by `cargo xtask build`, with another compiler than this crate; plain cargo
//! commands find its result in `target/ebpf`.

mod btf;

use std::{env, fs, path::Path, path::PathBuf, time::SystemTime};

/// The one whose maps have texts.
const CORE: &str = "sidetrack-core";
/// What is loaded at the start, and what is loaded when a pod needs it.
const OBJECTS: [&str; 4] = [
    CORE,
    "sidetrack-forward",
    "sidetrack-accelerate",
    "sidetrack-dns",
];

fn main() {
    // Relative, so that cargo looks at this checkout's files in a target directory that was copied from another.
    let root = Path::new("../..");
    println!("cargo::rerun-if-env-changed=SIDETRACK_EBPF");
    let dir = env::var_os("SIDETRACK_EBPF").map_or_else(
        || root.join("target/ebpf/bpfel-unknown-none/release"),
        PathBuf::from,
    );
    let objects = OBJECTS.map(|name| dir.join(name));
    for object in &objects {
        println!("cargo::rerun-if-changed={}", object.display());
    }
    let sources = ["ebpf/src", "ebpf/Cargo.toml", "common/src"].map(|dir| root.join(dir));
    for source in &sources {
        println!("cargo::rerun-if-changed={}", source.display());
    }
    let modified = |object: &PathBuf| fs::metadata(object).and_then(|meta| meta.modified());
    let Ok(built) = objects.iter().map(modified).collect::<Result<Vec<_>, _>>() else {
        println!(
            "cargo::error=the kernel programs are not built (not all are in {}): run `cargo xtask build`",
            dir.display()
        );
        return;
    };
    let newest_source = sources.iter().filter_map(|source| newest(source)).max();
    if newest_source > built.into_iter().max() {
        println!(
            "cargo::warning=the kernel programs are older than their sources: run `cargo xtask build`"
        );
    }
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("set by cargo"));
    for (name, object) in OBJECTS.into_iter().zip(&objects) {
        let mut programs = fs::read(object).expect("read the kernel programs");
        if name == CORE {
            btf::name_text(&mut programs)
                .expect("name the elements of texts in the kernel programs' BTF");
        }
        fs::write(out.join(name), programs).expect("write the kernel programs to OUT_DIR");
    }
}

/// The latest modification time below a path. Unit tests are in no object.
fn newest(path: &Path) -> Option<SystemTime> {
    if path.file_stem().is_some_and(|name| name == "tests") {
        return None;
    }
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
