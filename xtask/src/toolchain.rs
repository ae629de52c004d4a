//! The compiler for the kernel programs: one that can build `core` for the BPF target, and
//! bpf-linker.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result};

use crate::run::{answer, tools};

/// The version of bpf-linker. Its LLVM must read the bitcode of [`Rust`]'s compiler.
pub const LINKER_VERSION: &str = "0.13.0";
/// Major version of the LLVM that bpf-linker is built against.
pub const LLVM: &str = "22";

/// Where Debian's `rust-web-src` puts the standard library's sources.
const DEBIAN_SOURCES: &str = "/usr/lib/rustlib/src/rust/library";
/// Debian's compiler.
pub const DEBIAN_RUSTC: &str = "/usr/bin/rustc";
/// Debian's clippy.
pub const DEBIAN_CLIPPY: &str = "/usr/bin/cargo-clippy";

/// A compiler with the sources of `core`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Rust {
    /// rustup's nightly with the component rust-src.
    Nightly,
    /// Debian's, with unstable features enabled.
    Debian,
}

impl Rust {
    /// Finds one.
    pub fn find() -> Option<Self> {
        let sysroot = answer(Command::new("rustc").args(["+nightly", "--print", "sysroot"]));
        let nightly = sysroot.is_some_and(|path| {
            Path::new(&path)
                .join("lib/rustlib/src/rust/library")
                .is_dir()
        });
        if nightly {
            return Some(Self::Nightly);
        }
        let debian = Path::new(DEBIAN_RUSTC).exists() && Path::new(DEBIAN_SOURCES).is_dir();
        debian.then_some(Self::Debian)
    }

    /// Makes a cargo command build with it.
    pub fn apply(&self, command: &mut Command) {
        match self {
            Self::Nightly => {
                if let Some(rustc) = nightly("rustc") {
                    command.env("RUSTC", rustc);
                }
            }
            Self::Debian => {
                command.env("RUSTC", DEBIAN_RUSTC);
            }
        }
        command.env("RUSTC_BOOTSTRAP", "1");
    }

    /// Its clippy: another compiler's would check with other rules than those it builds by.
    pub fn clippy(&self) -> Result<PathBuf> {
        match self {
            Self::Nightly => nightly("cargo-clippy")
                .map(PathBuf::from)
                .context("nightly has no clippy: rustup component add --toolchain nightly clippy"),
            Self::Debian => Ok(PathBuf::from(DEBIAN_CLIPPY)),
        }
    }
}

/// Where rustup keeps a program of its nightly.
fn nightly(program: &str) -> Option<String> {
    answer(Command::new("rustup").args(["which", program, "--toolchain", "nightly"]))
}

/// bpf-linker of the pinned version, from `target/tools` or from the path.
pub fn linker() -> Option<PathBuf> {
    let own = tools().join("bin/bpf-linker");
    [own, PathBuf::from("bpf-linker")].into_iter().find(|path| {
        answer(Command::new(path).arg("--version")).is_some_and(|version| {
            version
                .split_whitespace()
                .any(|word| word == LINKER_VERSION)
        })
    })
}
