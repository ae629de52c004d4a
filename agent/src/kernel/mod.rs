//! The kernel side as the agent sees it: maps, programs, links and pins.

pub mod attachments;
pub mod cgroup;
pub mod hooks;
pub mod inbound;
pub mod kernel_layout;
pub mod kernel_log;
pub mod layouts;
pub mod maps;
pub mod pins;
pub mod policies;
pub mod probe;
pub mod sock_diag;
pub mod sys;
pub mod table;
pub mod usage;

use std::{
    fs::{self, File},
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, bail};
use aya::{Ebpf, EbpfLoader, programs::Program};
use sidetrack_common::names;

use self::{
    attachments::{Attached, Held, Link},
    hooks::{ARRIVAL_PROGRAM, CGROUP_HOOKS, Hook},
    inbound::InboundTemplate,
    kernel_layout::Offsets,
    kernel_log::{KernelLog, LogLevel},
    layouts::OldLayout,
    maps::Maps,
    pins::{Lock, Pins},
};

/// The compiled kernel programs.
pub static OBJECT: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/sidetrack-ebpf"));

/// The attached programs and their maps. Dropping it changes nothing for traffic: everything that
/// matters is pinned.
#[derive(Debug)]
pub struct Datapath {
    pins: Pins,
    lock: Lock,
    /// The shared maps.
    pub maps: Maps,
    inbound: InboundTemplate,
    held: Held,
    /// Older layouts that are not done with.
    pub earlier: Vec<OldLayout>,
}

impl Datapath {
    /// Loads the programs, creates or takes over the pinned maps, and attaches the cgroup hooks or
    /// replaces the programs of those that are attached. Should the cgroup vanish it is looked for
    /// again, as it was `given`.
    pub fn open(
        pins: Pins,
        cgroup: &Path,
        given: Option<&Path>,
        level: LogLevel,
    ) -> Result<(Self, KernelLog)> {
        let lock = pins.lock()?;
        let earlier = OldLayout::all(pins.root())
            .with_context(|| format!("list {}", pins.root().display()))?;
        if let Some(earlier) = earlier.last() {
            tracing::info!(
                version = earlier.version,
                "maps of an earlier layout are there; they are left when the pods are enrolled"
            );
        }
        let offsets = kernel_layout::offsets()?;
        let mut ebpf = load(&pins, &offsets, level)?;
        let maps = Maps::open(&pins)?;
        let target = File::open(cgroup)
            .with_context(|| format!("open the pods' cgroup {}", cgroup.display()))?;
        let cgroup_id = cgroup_id(cgroup)?;
        let mut hooks = Vec::new();
        for hook in &CGROUP_HOOKS {
            let program = load_program(&mut ebpf, hook)?;
            let link = attach(&pins, hook, program.as_fd(), target.as_fd(), cgroup_id)
                .with_context(|| format!("attach {} to cgroup {}", hook.name, cgroup.display()))?;
            hooks.push(Attached::new(hook, program.as_fd(), link)?);
        }
        // By now all who count do it in the same way, also where another build counted otherwise.
        maps.recount_handshakes()?;
        let arrival = judge_arrivals(&pins, &mut ebpf)?;
        let held = Held::new(&pins, hooks, arrival, (cgroup, cgroup_id), given)?;
        let inbound = InboundTemplate::new(&pins, &ebpf, level)?;
        let log = KernelLog::of(&mut ebpf)?;
        drop(ebpf);
        sys::trim_heap();
        Ok((
            Self {
                pins,
                lock,
                maps,
                inbound,
                held,
                earlier,
            },
            log,
        ))
    }

    /// Attaches a pod's sk_lookup program to its network namespace, or replaces the one that is
    /// attached.
    pub fn attach_pod(&self, netns_cookie: u64, netns: BorrowedFd<'_>) -> Result<()> {
        let path = self.pins.pod_link(netns_cookie);
        let program = self.inbound.instance(netns_cookie)?;
        if let Ok(link) = sys::open_pin(&path)
            && sys::link_update(link.as_fd(), program.as_fd()).is_ok()
        {
            self.held.pods().insert(netns_cookie, Link::new(link)?);
            return Ok(());
        }
        let link = sys::link_create(
            program.as_fd(),
            netns,
            aya_obj::generated::bpf_attach_type::BPF_SK_LOOKUP,
        )
        .context("attach sk_lookup to the pod's network namespace")?;
        let dir = path.parent().expect("pod links are in directories");
        fs::create_dir_all(dir).with_context(|| format!("create {}", dir.display()))?;
        replace_pin(link.as_fd(), &path)?;
        self.held.pods().insert(netns_cookie, Link::new(link)?);
        Ok(())
    }

    /// Replaces the program of a pod that was enrolled by an earlier agent. `false` when its
    /// network namespace is gone.
    pub fn refresh_pod(&self, netns_cookie: u64) -> Result<bool> {
        let link = sys::open_pin(&self.pins.pod_link(netns_cookie))
            .with_context(|| format!("open the sk_lookup link of netns {netns_cookie}"))?;
        let program = self.inbound.instance(netns_cookie)?;
        match sys::link_update(link.as_fd(), program.as_fd()) {
            Ok(()) => {
                self.held.pods().insert(netns_cookie, Link::new(link)?);
                Ok(true)
            }
            Err(error) if error.raw_os_error() == Some(libc::ENOLINK) => Ok(false),
            Err(error) => Err(error).context("replace the pod's sk_lookup program"),
        }
    }

    /// Detaches a pod's sk_lookup program.
    pub fn detach_pod(&self, netns_cookie: u64) -> Result<()> {
        self.held.pods().remove(&netns_cookie);
        let link = self.pins.pod_link(netns_cookie);
        let dir = link.parent().expect("pod links are in directories");
        match fs::remove_dir_all(dir) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(error).with_context(|| format!("remove {}", dir.display()))
            }
            _ => Ok(()),
        }
    }

    /// The cgroup the hooks are attached to.
    pub fn cgroup(&self) -> &Path {
        self.held.cgroup()
    }

    /// Cookies of the pods that are attached, by this or an earlier agent.
    pub fn attached_pods(&self) -> Result<Vec<u64>> {
        Ok(self.pins.pinned_pods()?)
    }
}

fn load(pins: &Pins, offsets: &Offsets, level: LogLevel) -> Result<Ebpf> {
    let mut loader = EbpfLoader::new();
    // Rust programs have no CO-RE relocations; the offsets stand in for them.
    loader.btf(None);
    for (global, offset) in offsets {
        loader.override_global(global, offset, true);
    }
    let errno = u8::from(probe::set_retval());
    loader.override_global("CAN_SET_ERRNO", &errno, true);
    let iface = u8::from(probe::ingress_ifindex());
    loader.override_global("CAN_SEE_IFACE", &iface, true);
    loader.override_global(aya_log::LEVEL, &level.0, true);
    let paths: Vec<(&str, PathBuf)> = names::MAPS
        .iter()
        .map(|name| (*name, pins.map(name)))
        .collect();
    for (name, path) in &paths {
        loader.map_pin_path(name, path.as_path());
    }
    loader.load(OBJECT).context(
        "load the kernel programs; `sidetrack doctor` says what this kernel lacks, if anything",
    )
}

/// Loads the program that judges arrivals and puts it in the place of the one that does now, for all
/// pods at once.
fn judge_arrivals(pins: &Pins, ebpf: &mut Ebpf) -> Result<OwnedFd> {
    let program = ebpf.program_mut(ARRIVAL_PROGRAM);
    let Some(Program::SkLookup(program)) = program else {
        bail!("no program {ARRIVAL_PROGRAM} in the object");
    };
    program
        .load()
        .with_context(|| format!("load {ARRIVAL_PROGRAM}"))?;
    let path = pins.map(names::ARRIVAL_PROGRAM);
    let map = sys::open_pin(&path).with_context(|| format!("open map {}", path.display()))?;
    let program = program.fd()?.as_fd().try_clone_to_owned()?;
    let number = fd_number(program.as_fd());
    sys::map_update(map.as_fd(), &0_u32.to_ne_bytes(), &number.to_ne_bytes(), 0)
        .with_context(|| format!("put {ARRIVAL_PROGRAM} in force"))?;
    Ok(program)
}

fn load_program<'a>(ebpf: &'a mut Ebpf, hook: &Hook) -> Result<&'a aya::programs::ProgramFd> {
    let program = ebpf
        .program_mut(hook.program)
        .with_context(|| format!("no program {} in the object", hook.program))?;
    let fd = match program {
        Program::CgroupSockAddr(program) => program.load().and_then(|()| program.fd()),
        Program::CgroupSockopt(program) => program.load().and_then(|()| program.fd()),
        Program::SockOps(program) => program.load().and_then(|()| program.fd()),
        _ => bail!("program {} is of another type", hook.program),
    };
    fd.with_context(|| format!("load {}", hook.name))
}

/// The cgroup's id, as links report it: the inode of its directory.
fn cgroup_id(cgroup: &Path) -> Result<u64> {
    use std::os::unix::fs::MetadataExt as _;
    let meta = fs::metadata(cgroup).with_context(|| format!("stat {}", cgroup.display()))?;
    Ok(meta.ino())
}

fn attach(
    pins: &Pins,
    hook: &Hook,
    program: BorrowedFd<'_>,
    cgroup: BorrowedFd<'_>,
    cgroup_id: u64,
) -> Result<OwnedFd> {
    let path = pins.link(hook.name);
    if let Ok(link) = sys::open_pin(&path)
        && sys::link_cgroup(link.as_fd()).ok() == Some(cgroup_id)
        && sys::link_update(link.as_fd(), program).is_ok()
    {
        return Ok(link);
    }
    let link = sys::link_create(program, cgroup, hook.attach_type)?;
    replace_pin(link.as_fd(), &path)?;
    Ok(link)
}

/// Pins an object under a name that may be taken: first aside, then renamed over it.
fn replace_pin(object: BorrowedFd<'_>, path: &Path) -> Result<()> {
    let mut aside = path.as_os_str().to_owned();
    aside.push(layouts::ASIDE);
    let aside = PathBuf::from(aside);
    let _ = fs::remove_file(&aside);
    sys::pin(object, &aside).with_context(|| format!("pin {}", aside.display()))?;
    fs::rename(&aside, path).with_context(|| format!("rename {} into place", aside.display()))
}

/// A descriptor as the number that instructions carry.
fn fd_number(fd: BorrowedFd<'_>) -> i32 {
    fd.as_raw_fd()
}
