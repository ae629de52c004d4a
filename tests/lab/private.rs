//! A mount namespace of our own: what is mounted in it (bpffs, named network namespaces) vanishes
//! with the last process that uses it, however that process ends.

use std::{fs, path::Path};

use anyhow::{Context as _, Result, bail};
use nix::{
    mount::{MsFlags, mount},
    sched::{CloneFlags, unshare},
};

/// Fails unless the process is root.
pub fn require_root() -> Result<()> {
    if !nix::unistd::geteuid().is_root() {
        bail!(
            "this needs root: it loads programs into the kernel and makes network namespaces.\n\
             Run it as root, or with sudo -E."
        );
    }
    Ok(())
}

/// Moves this process, which must have one thread, into a mount namespace of its own.
pub fn enter() -> Result<()> {
    unshare(CloneFlags::CLONE_NEWNS).context("make a mount namespace")?;
    mount(
        None::<&str>,
        "/",
        None::<&str>,
        MsFlags::MS_REC | MsFlags::MS_PRIVATE,
        None::<&str>,
    )
    .context("make mounts private")?;
    // Named network namespaces, and their resolv.conf files.
    for path in ["/run/netns", "/etc/netns"] {
        fs::create_dir_all(path).with_context(|| format!("create {path}"))?;
        mount_at("tmpfs", Path::new(path))?;
    }
    Ok(())
}

/// Mounts a file system of a type that needs no device.
pub fn mount_at(fs_type: &str, path: &Path) -> Result<()> {
    mount(
        Some(fs_type),
        path,
        Some(fs_type),
        MsFlags::empty(),
        None::<&str>,
    )
    .with_context(|| format!("mount {fs_type} on {}", path.display()))
}
