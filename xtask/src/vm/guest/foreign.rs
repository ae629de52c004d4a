//! The programs of a guest with another processor than the host's: Debian's packages, unpacked.

use std::{fs, os::unix::fs::symlink, path::Path, process::Command};

use anyhow::{Context as _, Result};

use crate::{
    apt::{Apt, Mirrors},
    arch::Arch,
    run::must,
};

/// The release whose programs are used. Its glibc must not be older than the one that the tests are linked with.
const SUITE: &str = "bookworm";

/// Packages with the programs that tests start.
const PACKAGES: [&str; 14] = [
    "bpftool",
    "busybox-static",
    "conntrack",
    "containernetworking-plugins",
    "coreutils",
    "curl",
    "dash",
    "ethtool",
    "iproute2",
    "iptables",
    "kmod",
    "libgcc-s1",
    "python3",
    "util-linux",
];

/// What an installation would link: the variant of iptables that Debian prefers.
const LINKS: [(&str, &str); 6] = [
    ("iptables", "xtables-nft-multi"),
    ("iptables-save", "xtables-nft-multi"),
    ("iptables-restore", "xtables-nft-multi"),
    ("ip6tables", "xtables-nft-multi"),
    ("ip6tables-save", "xtables-nft-multi"),
    ("ip6tables-restore", "xtables-nft-multi"),
];

/// What no program reads; without it a guest starts sooner.
const UNREAD: [&str; 5] = ["doc", "man", "locale", "info", "zoneinfo"];

/// Copies the programs into a guest's tree; downloads them if they are not in `dir`.
pub fn copy_programs(dir: &Path, arch: Arch, tree: &Path) -> Result<()> {
    let unpacked = dir.join("unpacked");
    if !unpacked.exists() {
        fs::create_dir_all(dir)?;
        eprintln!("vm: downloading programs for {}", arch.name());
        let apt = Apt::new(dir.join("apt"), arch, &Mirrors::find()?.source(SUITE)?)?;
        apt.unpack_with_dependencies(&PACKAGES, &unpacked)?;
        for unread in UNREAD {
            let _ = fs::remove_dir_all(unpacked.join("usr/share").join(unread));
        }
    }
    for part in ["bin", "sbin", "lib", "usr", "etc"] {
        // The guest's /bin and /lib are links into /usr.
        must(
            Command::new("cp")
                .arg("-a")
                .arg(unpacked.join(part).join("."))
                .arg(tree.join(part).join(".")),
        )?;
    }
    for (name, program) in LINKS {
        let link = tree.join("usr/sbin").join(name);
        symlink(program, &link).with_context(|| format!("link {}", link.display()))?;
    }
    let shell = tree.join("usr/bin/sh");
    if !shell.exists() {
        symlink("dash", shell)?;
    }
    Ok(())
}
