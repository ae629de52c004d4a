//! Installs what building, testing and the demo need: Debian packages, bpf-linker, and a Python
//! environment with Envoy and httpbin. Quick when nothing is missing.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, bail};

use crate::{
    arch::Arch,
    progress,
    run::{answer, cargo, is_root, must, root, tools},
    toolchain::{self, DEBIAN_CLIPPY, LINKER_VERSION, LLVM, Rust},
    unpacked,
};

/// What a command runs beside the agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Needs {
    /// Network tools, Envoy and httpbin.
    Demo,
    /// The same, and what starts pods and reads the chart.
    Tests,
}

/// A Debian package, and the files it is recognized by, so that other distributions' packages count as
/// well.
type Package = (&'static str, &'static [&'static str]);

const FOR_DEMO: [Package; 8] = [
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
];

const FOR_TESTS: [Package; 10] = [
    ("ethtool", &["/usr/sbin/ethtool", "/sbin/ethtool"]),
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
    ("dnsmasq-base", &["/usr/sbin/dnsmasq"]),
    ("bind9-dnsutils", &["/usr/bin/dig"]),
    ("musl-tools", &["/usr/bin/musl-gcc"]),
    (
        "golang-go",
        &["/usr/bin/go", "/usr/local/bin/go", "/usr/local/go/bin/go"],
    ),
    ("nodejs", &["/usr/bin/node", "/usr/local/bin/node"]),
];

const QEMU_AMD64: Package = ("qemu-system-x86", &["/usr/bin/qemu-system-x86_64"]);
const QEMU_ARM64: Package = ("qemu-system-arm", &["/usr/bin/qemu-system-aarch64"]);

const FOR_VM: [Package; 3] = [
    ("busybox-static", &["/bin/busybox"]),
    ("cpio", &["/usr/bin/cpio"]),
    ("kmod", &["/usr/sbin/depmod"]),
];

const FOR_LINTING: [Package; 1] = [("shellcheck", &["/usr/bin/shellcheck"])];

/// What the Python environment is made of, who needs it, and how pip is to install it. Helm's engine
/// requires a newer Python than Debian 12 has; it works without that version.
const REQUIREMENTS: [(&str, Needs, &[&str]); 2] = [
    ("tests/requirements.txt", Needs::Demo, &[]),
    (
        "tests/deploy/requirements.txt",
        Needs::Tests,
        &["--no-deps", "--ignore-requires-python"],
    ),
];

/// Installs whatever is missing for any command.
pub fn everything() -> Result<()> {
    packages_for(Needs::Tests)?;
    linker()?;
    unpacked::unpack()?;
    python(Needs::Tests)
}

/// The compiler and linker for the kernel programs.
pub fn for_building() -> Result<()> {
    packages(&missing_for_building())?;
    linker()
}

/// The compiler for libFuzzer.
pub fn for_fuzzing() -> Result<()> {
    only(&[("g++", &["/usr/bin/c++"])])
}

/// The builder of images.
pub fn for_images() -> Result<()> {
    only(&[("buildah", &["/usr/bin/buildah"])])
}

/// What tries packages in root file systems.
pub fn for_packages() -> Result<()> {
    let wanted = [("mmdebstrap", &["/usr/bin/mmdebstrap"] as &[_])];
    let mut names = missing(&wanted);
    names.extend(missing(&FOR_DEMO));
    packages(&names)
}

/// QEMU for an architecture, and what a guest's file system is made with.
pub fn for_vm(arch: Arch) -> Result<()> {
    let qemu = match arch {
        Arch::Amd64 => QEMU_AMD64,
        Arch::Arm64 => QEMU_ARM64,
    };
    let mut wanted = vec![qemu];
    wanted.extend(FOR_VM);
    only(&wanted)
}

/// The C compiler for another architecture than this machine's.
pub fn for_cross(arch: Arch) -> Result<()> {
    only(&[match arch {
        Arch::Amd64 => ("gcc-x86-64-linux-gnu", &["/usr/bin/x86_64-linux-gnu-gcc"]),
        Arch::Arm64 => ("gcc-aarch64-linux-gnu", &["/usr/bin/aarch64-linux-gnu-gcc"]),
    }])?;
    // The compiler only recommends it.
    only(&[match arch {
        Arch::Amd64 => (
            "libc6-dev-amd64-cross",
            &["/usr/x86_64-linux-gnu/lib/libc.a"],
        ),
        Arch::Arm64 => (
            "libc6-dev-arm64-cross",
            &["/usr/aarch64-linux-gnu/lib/libc.a"],
        ),
    }])
}

/// The Debian packages for building and running, in one installation.
pub fn packages_for(needs: Needs) -> Result<()> {
    let mut names = missing_for_building();
    names.extend(missing(&FOR_DEMO));
    if needs == Needs::Tests {
        names.extend(missing(&FOR_TESTS));
    }
    names.extend(missing_for_python());
    packages(&names)
}

/// What lint runs beside cargo's own commands.
pub fn for_linting() -> Result<()> {
    let mut names = missing_for_building();
    names.extend(missing(&FOR_LINTING));
    names.extend(missing_for_python());
    if Rust::find() != Some(Rust::Nightly) {
        names.extend(missing(&[("rust-web-clippy", &[DEBIAN_CLIPPY])]));
    }
    packages(&names)?;
    linker()?;
    let wanted = ["xtask/requirements.txt"].map(|file| (file, &["--require-hashes"] as &[_]));
    environment("lint", &wanted)
}

fn only(wanted: &[Package]) -> Result<()> {
    packages(&missing(wanted))
}

fn missing(wanted: &[Package]) -> Vec<String> {
    wanted
        .iter()
        .filter(|(_, paths)| !paths.iter().any(|path| Path::new(path).exists()))
        .map(|(package, _)| (*package).to_owned())
        .collect()
}

fn missing_for_building() -> Vec<String> {
    let mut names = Vec::new();
    if Rust::find().is_none() {
        names.extend(["rustc-web", "rust-web-src"].map(str::to_owned));
    }
    let llvm = llvm();
    let has_llvm = llvm.join("bin/llvm-config").exists() && llvm.join("lib/libPolly.a").exists();
    if toolchain::linker().is_none() && !has_llvm {
        names.extend([format!("llvm-{LLVM}-dev"), format!("libpolly-{LLVM}-dev")]);
        names.extend(["libzstd-dev", "zlib1g-dev", "g++"].map(str::to_owned));
    }
    names
}

fn missing_for_python() -> Option<String> {
    let modules = answer(Command::new("/usr/bin/python3").args(["-c", "import ensurepip, venv"]));
    modules.is_none().then(|| "python3-venv".to_owned())
}

fn llvm() -> PathBuf {
    PathBuf::from(format!("/usr/lib/llvm-{LLVM}"))
}

/// Builds bpf-linker unless it is there.
pub fn linker() -> Result<()> {
    if toolchain::linker().is_some() {
        return Ok(());
    }
    let mut command = cargo();
    command
        .env("LLVM_PREFIX", llvm())
        .args(["install", "--locked", "bpf-linker"])
        .args(["--version", LINKER_VERSION])
        .args(["--no-default-features", "--features"])
        .arg(format!("llvm-{LLVM}"))
        .arg("--root")
        .arg(tools());
    let name = format!("building bpf-linker {LINKER_VERSION}");
    progress::run(&name, "about two minutes", &mut command)
}

/// Installs Debian packages, or says how.
fn packages(names: &[String]) -> Result<()> {
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
    let apt_get = || {
        let mut command = Command::new("apt-get");
        command
            .env("DEBIAN_FRONTEND", "noninteractive")
            // Another run of apt may hold the lock: this one waits for it.
            .args(["-qq", "-o", "Dpkg::Use-Pty=0"])
            .args(["-o", "DPkg::Lock::Timeout=300"]);
        command
    };
    let install = || {
        progress::run(
            "reading package lists",
            "some seconds",
            apt_get().arg("update"),
        )?;
        let mut install = apt_get();
        install.args(["install", "-y", "--no-install-recommends"]);
        let name = format!("installing {list}");
        progress::run(&name, "a minute or two", install.args(names))
    };
    // The other run may also remove the archives that this one has downloaded, or hold the lock of the
    // lists, for which apt has no waiting.
    install().or_else(|problem| {
        eprintln!("setup: {problem:#}; trying once more");
        install()
    })
}

/// A Python environment with what [`REQUIREMENTS`] name.
pub fn python(needs: Needs) -> Result<()> {
    let wanted: Vec<_> = REQUIREMENTS
        .iter()
        .filter(|(_, for_whom, _)| needs == Needs::Tests || *for_whom == Needs::Demo)
        .map(|(file, _, options)| (*file, *options))
        .collect();
    environment("python", &wanted)
}

/// A Python environment in `target/tools` with what files of requirements name, each with options of pip.
fn environment(name: &str, files: &[(&str, &[&str])]) -> Result<()> {
    let mut wanted = Vec::new();
    for (file, options) in files {
        let text = fs::read_to_string(root().join(file));
        wanted.push((file, options, text.with_context(|| format!("read {file}"))?));
    }
    let venv = tools().join(name);
    let stamp = venv.join("installed.txt");
    let mut installed = fs::read_to_string(&stamp).unwrap_or_default();
    let all: String = wanted.iter().map(|(_, _, text)| text.as_str()).collect();
    if installed.starts_with(&all) {
        return Ok(());
    }
    if installed.is_empty() || !all.starts_with(&installed) {
        let mut command = Command::new("/usr/bin/python3");
        must(command.args(["-m", "venv", "--clear"]).arg(&venv))?;
        installed.clear();
    }
    let mut so_far = String::new();
    for (file, options, text) in wanted {
        so_far += &text;
        if installed.starts_with(&so_far) {
            continue;
        }
        let mut pip = Command::new(venv.join("bin/pip"));
        pip.args(["install", "--quiet", "--disable-pip-version-check"])
            .arg("--use-pep517")
            .args(*options)
            .arg("--requirement")
            .arg(root().join(file));
        let name = format!("installing Python packages of {file}");
        progress::run(&name, "up to a minute", &mut pip)?;
        fs::write(&stamp, &so_far)?;
    }
    Ok(())
}
