//! What compiles userland programs for an architecture: the toolchain that runs xtask, if it has the architecture's
//! standard library, else Debian's compiler with Debian's library for it.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, bail};

use crate::{
    apt::{Apt, Mirrors},
    arch::Arch,
    run::{answer, tools},
    setup,
    toolchain::DEBIAN_RUSTC,
};

/// The package with Debian's standard library.
const LIBRARY: &str = "libstd-rust-web-dev";

/// A compiler for an architecture.
#[derive(Debug)]
pub struct Userland {
    /// What it compiles for.
    pub arch: Arch,
    /// The directory with Debian's library, if Debian's compiler is used.
    sysroot: Option<PathBuf>,
}

impl Userland {
    /// Finds one; installs what is missing.
    pub fn find(arch: Arch) -> Result<Self> {
        if arch == Arch::native() {
            return Ok(Self {
                arch,
                sysroot: None,
            });
        }
        setup::for_cross(arch)?;
        let own = Command::new("rustc")
            .args(["--print", "target-libdir", "--target", &arch.triple()])
            .output()
            .context("run rustc")?;
        let own = String::from_utf8_lossy(&own.stdout).trim().to_owned();
        let sysroot = if Path::new(&own).is_dir() {
            None
        } else {
            Some(debian(arch)?)
        };
        Ok(Self { arch, sysroot })
    }

    /// The compiler's own words about its version.
    pub fn version(&self) -> Result<String> {
        let rustc = if self.sysroot.is_some() {
            DEBIAN_RUSTC
        } else {
            "rustc"
        };
        answer(Command::new(rustc).arg("--version")).with_context(|| format!("run {rustc}"))
    }

    /// Makes a cargo command compile for it with these flags. Build scripts and macros are for this machine and get none.
    pub fn apply(&self, command: &mut Command, flags: &[String]) {
        let mut flags = flags.to_vec();
        let triple = self.arch.triple();
        if self.arch != Arch::native() {
            let gcc = self.arch.gnu() + "-gcc";
            let name = triple.replace('-', "_");
            command
                .env(format!("CC_{name}"), &gcc)
                .env(format!("CARGO_TARGET_{}_LINKER", name.to_uppercase()), &gcc);
        }
        if let Some(sysroot) = &self.sysroot {
            command.env("RUSTC", DEBIAN_RUSTC);
            flags.push(format!("--sysroot={}", sysroot.display()));
        }
        command
            .env("CARGO_ENCODED_RUSTFLAGS", flags.join("\u{1f}"))
            .env_remove("RUSTFLAGS")
            .args(["--target", &triple]);
    }

    /// Its program that removes symbols.
    pub fn strip(&self) -> String {
        if self.arch == Arch::native() {
            "strip".to_owned()
        } else {
            self.arch.gnu() + "-strip"
        }
    }
}

/// Debian's library for an architecture, of the version of Debian's compiler.
fn debian(arch: Arch) -> Result<PathBuf> {
    setup::for_building()?;
    let installed = Command::new("dpkg-query")
        .args(["--show", "--showformat", "${Version}", LIBRARY])
        .output()
        .context("run dpkg-query")?;
    if !installed.status.success() || !Path::new(DEBIAN_RUSTC).exists() {
        let triple = arch.triple();
        bail!("no standard library for {triple}: run `rustup target add {triple}`");
    }
    let version = String::from_utf8_lossy(&installed.stdout).into_owned();
    let dir = tools().join(format!("std-{}-{version}", arch.name()));
    if !dir.exists() {
        let suite =
            answer(Command::new("sh").args(["-c", ". /etc/os-release; echo $VERSION_CODENAME"]))
                .context("this machine's release of Debian")?;
        let mirrors = Mirrors::find()?;
        let sources = [suite.clone(), format!("{suite}-security")]
            .iter()
            .filter_map(|suite| mirrors.source(suite).ok())
            .collect::<String>();
        eprintln!(
            "setup: downloading Debian's {LIBRARY} {version} for {}",
            arch.name()
        );
        let apt = Apt::new(tools().join(format!("apt-{}", arch.name())), arch, &sources)?;
        apt.unpack(&[format!("{LIBRARY}={version}")], &dir)?;
    }
    Ok(dir.join("usr"))
}
