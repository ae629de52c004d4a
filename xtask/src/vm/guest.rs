//! The initramfs of a guest: the tests, the programs they start, the libraries of both, and the kernel's
//! modules. Paths are those of the host. For another processor than the host's the programs are Debian's packages.

mod foreign;

use std::{
    fs::{self, File},
    io,
    os::unix::fs::{PermissionsExt as _, symlink},
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context as _, Result, bail};

use super::archive::Unpacked;
use crate::{
    arch::Arch,
    build::{self, Agent},
    cross::Userland,
    run::{answer, cargo, must, root},
};

/// Programs of the host that tests start, and `modprobe`, which the kernel starts.
const PROGRAMS: [&str; 29] = [
    "sh",
    "ip",
    "ss",
    "iptables",
    "iptables-save",
    "iptables-restore",
    "ip6tables",
    "ip6tables-save",
    "ip6tables-restore",
    "iptables-nft",
    "ip6tables-nft",
    "iptables-legacy",
    "iptables-legacy-save",
    "iptables-legacy-restore",
    "ip6tables-legacy",
    "ip6tables-legacy-save",
    "ip6tables-legacy-restore",
    "bpftool",
    "conntrack",
    "ethtool",
    "tc",
    "setpriv",
    "setsid",
    "stty",
    "unshare",
    "nsenter",
    "curl",
    "python3",
    "modprobe",
];

/// Programs that busybox provides.
const APPLETS: [&str; 13] = [
    "cat", "find", "grep", "id", "ls", "mkdir", "mkfifo", "mount", "poweroff", "rm", "sleep",
    "sysctl", "true",
];

/// What the tests' Python programs import; `socket` imports `encodings.idna` when it looks up a name.
const PYTHON: &str = "import ctypes, encodings.idna, fcntl, hashlib, http.server, os, random, resource, select\n\
    import socket, struct, sys, tempfile, termios, threading, time\n\
    for module in list(sys.modules.values()):\n    \
    if getattr(module, '__file__', None): print(module.__file__)";

/// Directories where distributions keep the extensions of iptables.
const XTABLES: [&str; 3] = [
    "/usr/lib/x86_64-linux-gnu/xtables",
    "/usr/lib64/xtables",
    "/usr/lib/xtables",
];

/// The CNI plugins that tests chain, and the directories where distributions keep them.
const PLUGINS: [&str; 3] = ["bridge", "host-local", "tuning"];
const PLUGIN_DIRS: [&str; 2] = ["/usr/lib/cni", "/opt/cni/bin"];

const BUSYBOX: &str = "/bin/busybox";

/// Modules that no test needs; without them a guest starts sooner.
const UNNEEDED: [&str; 6] = [
    "kernel/fs",
    "kernel/sound",
    "kernel/drivers/gpu",
    "kernel/drivers/infiniband",
    "kernel/drivers/md",
    "kernel/drivers/scsi",
];

/// The part of the initramfs that is the same for all kernels.
#[derive(Debug)]
pub struct Guest {
    dir: PathBuf,
    arch: Arch,
    programs: PathBuf,
}

impl Guest {
    /// Collects the files.
    pub fn new(dir: &Path, filters: &[String], userland: &Userland) -> Result<Self> {
        let tree = Tree::new(dir.join("programs"))?;
        for link in ["bin", "sbin", "lib", "lib64"] {
            fs::create_dir_all(tree.at(Path::new("usr")).join(link))?;
            symlink(format!("usr/{link}"), tree.root.join(link))?;
        }
        for directory in [
            "dev",
            "etc",
            "mnt",
            "proc",
            "root",
            "run",
            "sys",
            "tmp",
            "sidetrack",
        ] {
            fs::create_dir(tree.root.join(directory))?;
        }
        // Tests write there as the application's user.
        fs::set_permissions(tree.root.join("tmp"), fs::Permissions::from_mode(0o1777))?;
        if userland.arch == Arch::native() {
            tree.own_programs()?;
        } else {
            foreign::copy_programs(&dir.join("userland"), userland.arch, &tree.root)?;
        }
        for name in APPLETS {
            let link = tree.root.join("usr/bin").join(name);
            if !link.exists() {
                symlink("busybox", link)?;
            }
        }
        fs::write(
            tree.root.join("etc/passwd"),
            "root:x:0:0:root:/root:/bin/sh\n",
        )?;
        // `ip netns exec` mounts a pod's own over it.
        fs::write(tree.root.join("etc/resolv.conf"), "")?;
        tree.tests(filters, userland)?;
        let programs = dir.join("programs.cpio");
        tree.archive(&programs)?;
        Ok(Self {
            dir: dir.to_owned(),
            arch: userland.arch,
            programs,
        })
    }

    /// Its processor.
    pub fn arch(&self) -> Arch {
        self.arch
    }

    /// The initramfs for a kernel. `name` distinguishes its files from those of other guests.
    pub fn initramfs(&self, name: &str, kernel: &Unpacked) -> Result<PathBuf> {
        let path = self.dir.join(format!("initramfs-{name}"));
        let mut whole = File::create(&path)?;
        io::copy(&mut File::open(&self.programs)?, &mut whole)?;
        if let Some(modules) = &kernel.modules {
            let archive = self.modules(modules)?;
            io::copy(&mut File::open(&archive)?, &mut whole)?;
            fs::remove_file(archive)?;
        }
        Ok(path)
    }

    /// An archive of modules; their directory is named after the kernel's release.
    fn modules(&self, from: &Path) -> Result<PathBuf> {
        let release = from.file_name().context("modules are in a directory")?;
        let release = release.to_string_lossy().into_owned();
        let tree = Tree::new(self.dir.join(format!("modules-{release}")))?;
        let modules = tree.root.join("usr/lib/modules").join(&release);
        fs::create_dir_all(&modules)?;
        must(
            Command::new("cp")
                .arg("-a")
                .arg(from.join("kernel"))
                .arg(&modules),
        )?;
        for file in fs::read_dir(from)? {
            let file = file?;
            let name = file.file_name();
            if name.to_string_lossy().starts_with("modules.") {
                fs::copy(file.path(), modules.join(name))?;
            }
        }
        for unneeded in UNNEEDED {
            let _ = fs::remove_dir_all(modules.join(unneeded));
        }
        let mut depmod = Command::new(find("depmod")?);
        // It warns about lists that newer packages do not have.
        depmod
            .arg("-b")
            .arg(tree.root.join("usr"))
            .arg(&release)
            .stderr(Stdio::null());
        must(&mut depmod)?;
        let archive = self.dir.join(format!("modules-{release}.cpio"));
        tree.archive(&archive)?;
        fs::remove_dir_all(tree.root)?;
        Ok(archive)
    }
}

/// A directory that becomes an archive.
struct Tree {
    root: PathBuf,
}

impl Tree {
    fn new(root: PathBuf) -> Result<Self> {
        if root.exists() {
            fs::remove_dir_all(&root).with_context(|| format!("empty {}", root.display()))?;
        }
        fs::create_dir_all(&root).with_context(|| format!("create {}", root.display()))?;
        Ok(Self { root })
    }

    fn at(&self, path: &Path) -> PathBuf {
        self.root.join(path.strip_prefix("/").unwrap_or(path))
    }

    /// Copies a file, following links.
    fn file(&self, from: &Path, to: &Path) -> Result<()> {
        let to = self.at(to);
        if to.exists() {
            return Ok(());
        }
        let parent = to.parent().context("a file is in a directory")?;
        fs::create_dir_all(parent)?;
        fs::copy(from, &to)
            .map(drop)
            .with_context(|| format!("copy {} to {}", from.display(), to.display()))
    }

    /// This machine's programs.
    fn own_programs(&self) -> Result<()> {
        for name in PROGRAMS {
            self.program(&find(name)?)?;
        }
        self.file(Path::new(BUSYBOX), Path::new("/usr/bin/busybox"))?;
        let python = answer(Command::new("/usr/bin/python3").args(["-c", PYTHON]))
            .context("list the modules of Python")?;
        for module in python.lines() {
            self.program(Path::new(module))?;
        }
        let extensions = XTABLES.iter().find(|path| Path::new(path).is_dir());
        let extensions = extensions.context("no extensions of iptables on this machine")?;
        for extension in fs::read_dir(extensions)? {
            self.program(&extension?.path())?;
        }
        let holds = |dir: &&&str| Path::new(dir).join(PLUGINS[0]).exists();
        let plugins = PLUGIN_DIRS.iter().find(holds);
        let plugins = Path::new(plugins.context("no CNI plugins on this machine")?);
        for plugin in PLUGINS {
            self.program(&plugins.join(plugin))?;
        }
        Ok(())
    }

    /// Copies a program to the same path, with the libraries it is linked with.
    fn program(&self, path: &Path) -> Result<()> {
        self.file(path, path)?;
        self.libraries(path)
    }

    fn libraries(&self, path: &Path) -> Result<()> {
        // Fails for a file that is no program and needs no libraries.
        let listing = answer(Command::new("ldd").arg(path)).unwrap_or_default();
        for library in listing
            .split_whitespace()
            .filter(|word| word.starts_with('/'))
        {
            let library = Path::new(library);
            self.file(library, library)?;
        }
        Ok(())
    }

    /// The tests, with the files they look for: the actor, the manifests and the documentation beside them.
    fn tests(&self, filters: &[String], userland: &Userland) -> Result<()> {
        let dir = Path::new("/sidetrack");
        let is_native = userland.arch == Arch::native();
        let (built, agent) = if is_native {
            (root().join("target/debug"), Agent::Release.path())
        } else {
            let built = root().join("target").join(userland.arch.triple());
            let released = build::statically_linked(userland.arch)?;
            build::helpers(userland)?;
            (built.join("debug"), released.join("sidetrack"))
        };
        for (from, name) in [
            (test_binary(userland)?, "kernel"),
            (built.join("sidetrack-actor"), "sidetrack-actor"),
            (built.join("kubectl-sidetrack"), "kubectl-sidetrack"),
            (agent, "sidetrack"),
        ] {
            if is_native {
                self.libraries(&from)?;
            }
            let to = self.at(&dir.join(name));
            // Debug information is most of a test binary.
            must(Command::new(userland.strip()).arg("-o").arg(to).arg(from))?;
        }
        let is_of_names = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == ':';
        let is_of_none = |text: &&String| text.is_empty() || !text.chars().all(is_of_names);
        if let Some(text) = filters.iter().find(is_of_none) {
            bail!("no test name contains {text:?}")
        }
        // All names have this in them.
        let all = if filters.is_empty() { "::" } else { "" };
        let variables = format!("FILTERS='{all}{}'\n", filters.join(" "));
        fs::write(self.at(&dir.join("variables")), variables)?;
        let init = self.root.join("init");
        fs::write(&init, include_str!("init.sh"))?;
        must(Command::new("chmod").arg("+x").arg(init))?;
        must(
            Command::new("cp")
                .arg("-a")
                .args(["deploy", "docs"].map(|part| root().join(part)))
                .arg(self.at(dir)),
        )
    }

    fn archive(&self, to: &Path) -> Result<()> {
        let mut find = Command::new("find")
            .current_dir(&self.root)
            .stdout(Stdio::piped())
            .arg(".")
            .spawn()
            .context("run find")?;
        let names = find.stdout.take().context("find's stdout")?;
        must(
            Command::new("cpio")
                .args(["--create", "--format=newc", "--owner=+0:+0", "--quiet"])
                .current_dir(&self.root)
                .stdin(names)
                .stdout(File::create(to)?),
        )?;
        find.wait()?;
        Ok(())
    }
}

fn find(name: &str) -> Result<PathBuf> {
    ["/usr/sbin", "/usr/bin", "/sbin", "/bin"]
        .iter()
        .map(|dir| Path::new(dir).join(name))
        .find(|path| path.exists())
        .with_context(|| format!("no program {name} on this machine"))
}

/// Builds the kernel tests and returns their binary.
fn test_binary(userland: &Userland) -> Result<PathBuf> {
    let mut command = cargo();
    command
        .args(["test", "--locked", "--workspace", "--no-run"])
        .args(["--test", "kernel"])
        .args(["--message-format", "json-render-diagnostics"])
        // Shows what is compiled.
        .stderr(Stdio::inherit());
    if userland.arch != Arch::native() {
        userland.apply(&mut command, &[]);
        command.args(["--exclude", "xtask"]);
    }
    let messages = answer(&mut command).context("build the tests")?;
    messages
        .lines()
        .filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok())
        .filter(|message| message["target"]["name"] == "kernel")
        .find_map(|message| message["executable"].as_str().map(PathBuf::from))
        .context("cargo does not report the binary of the tests")
}
