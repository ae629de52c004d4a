//! `sidetrack doctor` says of each facility whether it is there.

mod matrix;

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, ensure};
use lab::{
    agent::{Places, binary, limited},
    command::run,
    network::Lab,
};
use serde_json::Value;

/// Runs a program while the kernel refuses a system call.
const WITHOUT: &str = include_str!("doctor/without.py");

/// What takes facilities away.
#[derive(Debug)]
enum Away {
    /// The kernel refuses a system call: see [`WITHOUT`].
    Call(&'static str),
    /// A directory is empty.
    Directory(&'static str),
    /// The kernel says that it is an older one.
    Release(&'static str),
    /// The bpffs is read-only.
    Bpffs,
}

/// What is tried when nothing else is missing.
const OWN: &str = "sidetrack's own programs";

/// What is removed, and the facilities that are missing then.
const CASES: [(Away, &[&str]); 16] = [
    // BPF_PROG_LOAD
    (
        Away::Call("bpf 0=5 22"),
        &[
            "cgroup/connect4",
            "cgroup/connect6",
            "bpf_get_netns_cookie in connect",
            "bpf_skc_to_tcp_sock and typed loads in connect",
            "bpf_set_retval in connect",
            "bpf_skc_to_mptcp_sock in connect",
            "cgroup/getpeername4 and 6",
            "cgroup/getsockname4 and 6",
            "cgroup/sock_release",
            "sockops",
            "bpf_get_netns_cookie in sockops",
            "cgroup/getsockopt",
            "cgroup/setsockopt",
            "bpf_probe_read_kernel in cgroup/getsockopt",
            "sk_lookup",
            "ingress interface in sk_lookup",
            "programs on interfaces (tcx; before 6.6 tc filters)",
            "cgroup/recvmsg4 and 6",
            "bpf_probe_read_kernel in cgroup/sendmsg4 and 6",
        ],
    ),
    // BPF_MAP_CREATE
    (
        Away::Call("bpf 0=0 22"),
        &[
            "socket storage map",
            "sockhash map with lookup",
            "longest-prefix trie map",
            "ring buffer map",
        ],
    ),
    // AF_NETLINK, NETLINK_SOCK_DIAG
    (Away::Call("socket 0=16 2=4 93"), &["sock_diag for TCP"]),
    // SO_NETNS_COOKIE
    (
        Away::Call("getsockopt 2=71 92"),
        &["network namespace cookie"],
    ),
    (
        Away::Directory("/sys/kernel/btf"),
        &[
            "BTF of the kernel",
            "BPF iterator over open files",
            "BPF iterator over tasks",
        ],
    ),
    (
        Away::Release("6.13.0"),
        &["accounting of what is queued past TCP"],
    ),
    (Away::Bpffs, &["bpf filesystem"]),
    // BPF_OBJ_PIN
    (Away::Call("bpf 0=6 1"), &["bpf filesystem"]),
    // BPF_MAP_LOOKUP_ELEM, BPF_MAP_DELETE_ELEM, BPF_MAP_GET_NEXT_KEY, BPF_MAP_FREEZE, BPF_MAP_LOOKUP_BATCH and
    // BPF_ITER_CREATE, which no facility is named after
    (Away::Call("bpf 0=1 1"), &[OWN]),
    (Away::Call("bpf 0=3 1"), &[OWN]),
    (Away::Call("bpf 0=4 1"), &[OWN]),
    (Away::Call("bpf 0=22 1"), &[OWN]),
    (Away::Call("bpf 0=24 1"), &[OWN]),
    (Away::Call("bpf 0=33 1"), &[OWN]),
    // BPF_LINK_CREATE, which is refused where a program does not allow others beside it
    (Away::Call("bpf 0=28 1"), &["cgroup2"]),
    // BPF_LINK_UPDATE, by which a later agent takes over
    (Away::Call("bpf 0=29 1"), &["cgroup2"]),
];

/// What an administrator has to prepare: the option that says where it is, and a place where it is not.
const PLACES: [(&str, &str, &str); 6] = [
    ("--bpffs", "/nowhere", "bpf filesystem"),
    ("--cgroup", "/nowhere", "cgroup2"),
    ("--socket", "/proc/version/sidetrack.sock", "control socket"),
    // Permissions allow it, the file system does not.
    ("--socket", "/proc/sidetrack.sock", "control socket"),
    (
        "--socket",
        "/proc/sidetrack/sidetrack.sock",
        "control socket",
    ),
    ("--socket", LONG, "control socket"),
];
/// Of 110 bytes; the kernel takes 107.
const LONG: &str = "/tmp/xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx.s";

/// Facilities by name: whether doctor says that they can be used now. Its own programs are unknown if anything is missing
/// that they need.
fn ready(command: &mut Command) -> Result<BTreeMap<String, Option<bool>>> {
    let output = command.output()?;
    let report: Value = serde_json::from_slice(&output.stdout)
        .with_context(|| String::from_utf8_lossy(&output.stderr).into_owned())?;
    let ready = |check: &Value| Some(check["ok"].as_bool()? && check["problem"].is_null());
    let checks = report["checks"].as_array().context("checks")?.iter();
    let ready: BTreeMap<String, Option<bool>> = checks
        .map(|check| {
            (
                check["facility"].as_str().unwrap_or_default().to_owned(),
                ready(check),
            )
        })
        .collect();
    let optional = |name: &String| {
        report["checks"]
            .as_array()
            .into_iter()
            .flatten()
            .any(|it| it["facility"] == **name && it["optional"] == true)
    };
    let needed = ready.iter().filter(|(name, _)| !optional(name));
    let (own, others): (Vec<_>, Vec<_>) = needed.partition(|(name, _)| **name == *OWN);
    let has_others = others.iter().all(|(_, ready)| **ready == Some(true));
    let own = own.first().context("its own programs")?.1;
    ensure!(own.is_some() == has_others, "{report}");
    ensure!(
        report["ok"] == (has_others && *own == Some(true)),
        "{report}"
    );
    Ok(ready)
}

/// The agent's program, on a kernel that refuses a call: see [`WITHOUT`].
pub fn refusing(lab: &Lab, refused: &'static str) -> Result<PathBuf> {
    wrapper(lab, &Away::Call(refused))
}

/// The agent's program, without a facility.
fn wrapper(lab: &Lab, away: &Away) -> Result<PathBuf> {
    let wrapper = lab.dir().join("without");
    let mut words = away.prefix(&lab.places().bpffs);
    words.push(binary()?.display().to_string());
    let quoted: Vec<String> = words
        .iter()
        .map(|word| format!("'{}'", word.replace('\'', "'\\''")))
        .collect();
    fs::write(
        &wrapper,
        format!("#!/bin/sh\nexec {} \"$@\"\n", quoted.join(" ")),
    )?;
    fs::set_permissions(&wrapper, fs::Permissions::from_mode(0o755))?;
    Ok(wrapper)
}

/// doctor on this lab's places.
fn doctor(places: &Places) -> Result<Command> {
    let mut command = places.command(&["doctor", "-o", "json"])?;
    command.arg("--cgroup").arg(&places.cgroup);
    Ok(command)
}

impl Away {
    /// The start of a command line: what follows it runs without the facility.
    fn prefix(&self, bpffs: &Path) -> Vec<String> {
        const HIDE: &str = "mount -t tmpfs none $0 && exec \"$@\"";
        const SHOW: &str = "mount -t tmpfs none /mnt && echo $0 > /mnt/release && \
            mount --bind /mnt/release /proc/sys/kernel/osrelease && exec \"$@\"";
        const PROTECT: &str = "mount --bind $0 $0 && mount -o remount,bind,ro $0 && exec \"$@\"";
        let bpffs = bpffs.display().to_string();
        let words = match self {
            Self::Call(refused) => vec!["python3", "-c", WITHOUT, refused],
            Self::Directory(directory) => vec!["unshare", "--mount", "sh", "-c", HIDE, directory],
            Self::Release(release) => vec!["unshare", "--mount", "sh", "-c", SHOW, release],
            Self::Bpffs => vec!["unshare", "--mount", "sh", "-c", PROTECT, &bpffs],
        };
        words.into_iter().map(str::to_owned).collect()
    }

    fn applied(&self, doctor: &Command, bpffs: &Path) -> Command {
        let mut words = self.prefix(bpffs).into_iter();
        let mut command = Command::new(words.next().unwrap_or_default());
        command.args(words);
        command.arg(doctor.get_program()).args(doctor.get_args());
        command
    }
}

kernel_test!(each_missing_facility_is_reported);
/// Nothing else is: a facility that is named wrongly, or claimed although it is missing, differs.
fn each_missing_facility_is_reported() -> Result<()> {
    let lab = Lab::new()?;
    // What another one made that was killed goes with the next.
    let abandoned = lab.places().bpffs.join("sidetrack-doctor-1/v1/maps");
    fs::create_dir_all(&abandoned)?;
    let pin = abandoned.join("A").display().to_string();
    run(&format!(
        "bpftool map create {pin} type array key 4 value 4 entries 1 name A"
    ))?;
    let all = ready(&mut doctor(lab.places())?)?;
    let mut known = BTreeSet::from(["capabilities of root"]);
    for (away, missing) in &CASES {
        let bpffs = &lab.places().bpffs;
        let now = ready(&mut away.applied(&doctor(lab.places())?, bpffs))?;
        let is_tried = |name: &str| name != OWN || now[OWN].is_some();
        for (name, before) in all.iter().filter(|(name, _)| is_tried(name)) {
            let expected = if missing.contains(&name.as_str()) {
                Some(false)
            } else {
                *before
            };
            ensure!(
                now[name] == expected,
                "{name} without {away:?}: {:?}",
                now[name]
            );
        }
        known.extend(*missing);
    }
    for (option, place, facility) in PLACES {
        // What comes last counts.
        let mut command = Command::new(binary()?);
        command.args(["doctor", "-o", "json"]);
        for (other, right) in [
            ("--bpffs", &lab.places().bpffs),
            ("--cgroup", &lab.places().cgroup),
            ("--socket", &lab.places().socket),
        ] {
            command.arg(other);
            if other == option {
                command.arg(place);
            } else {
                command.arg(right);
            }
        }
        let now = ready(&mut command)?;
        let unready = now
            .iter()
            .filter(|(name, ready)| all[*name] == Some(true) && **ready != Some(true))
            .filter(|(name, _)| *name != OWN);
        let unready: Vec<&String> = unready.map(|(name, _)| name).collect();
        ensure!(unready == [facility], "{option} {place}: {unready:?}");
        known.insert(facility);
    }
    let listed: BTreeSet<&str> = all.keys().map(String::as_str).collect();
    ensure!(listed == known, "a facility that is not tested: {listed:?}");
    // What was tried is gone, on a node without an agent.
    for entry in fs::read_dir(&lab.places().bpffs)? {
        let name = entry?.file_name();
        ensure!(!name.to_string_lossy().contains("doctor"), "{name:?}");
    }
    Ok(())
}

kernel_test!(without_capabilities_nothing_is_claimed);
fn without_capabilities_nothing_is_claimed() -> Result<()> {
    let lab = Lab::new()?;
    let all = ready(&mut doctor(lab.places())?)?;
    let now = ready(&mut limited(&doctor(lab.places())?, &[]))?;
    ensure!(now["capabilities of root"] == Some(false), "{now:?}");
    for (_, programs) in &CASES[..2] {
        for name in *programs {
            ensure!(
                all[*name].is_some() && now[*name].is_none(),
                "{name}: {:?}",
                now[*name]
            );
        }
    }
    Ok(())
}
