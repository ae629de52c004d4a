//! What others do to the datapath while the agent runs: it repairs that, or says what is wrong.

use std::{
    fs,
    os::fd::{AsFd as _, OwnedFd},
    path::Path,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use aya_obj::generated::{bpf_attach_type, bpf_insn, bpf_prog_type};
use lab::product::{CGROUP_HOOKS, Maps, Pins, sys};
use lab::{
    actor::Actor,
    agent::{Agent, Extra, Places},
    ledger::cgroup_root,
    protocol::{APP, Dial, ROOT},
    sidecar,
};
use nix::sys::signal::Signal;
use sidetrack_common::addr::Family;

use crate::{OwnTest, fixture::at, lifecycle::Place};

const VIP: &str = "10.109.118.31";
/// Within this everything is to be noticed.
const NOTICED: Duration = Duration::from_secs(5);

pub fn tests() -> Vec<(&'static str, OwnTest)> {
    vec![
        ("health::detached_links_are_attached_again", links),
        ("health::another_program_in_a_link_is_replaced", swapped),
        ("health::removed_pins_are_made_again", removed_pins),
        ("health::the_directory_stays_the_agents", directory),
        ("health::a_late_look_ends_before_sidecar", before_sidecar),
        ("health::a_pods_row_is_written_again", pod_row),
        ("health::policies_are_written_again", policy_rows),
        ("health::routes_and_interfaces_are_written_again", namespace),
        ("health::listeners_are_found_again", listeners),
        ("health::a_foreign_pod_is_removed", foreign_pod),
        ("health::arrivals_are_judged_again", arrivals),
        ("health::programs_of_others_are_told_of", strangers),
        ("health::a_cgroup_made_anew_is_followed", cgroup_made_anew),
        ("health::a_cgroup_out_of_reach_is_told_of", cgroup_away),
    ]
}

/// A pod with a sidecar, enrolled.
fn place(annotations: &[(&str, &str)]) -> Result<(Place, Actor)> {
    let place = Place::new()?;
    let sidecar = sidecar::start(&place.pod, &[80])?;
    place.enroll(annotations)?;
    works(&place).context("before anything is done")?;
    Ok((place, sidecar))
}

/// Both directions go through the sidecar, which is told the original destination.
fn works(place: &Place) -> Result<()> {
    outbound(place)?;
    let inbound = place.outside.dial(Dial::new(&ROOT, at("10.77.0.2", 80)))?;
    let inbound = inbound.map_err(|errno| anyhow!("inbound: errno {errno}"))?;
    ensure!(inbound.accepted_by == 15006, "inbound: {inbound:?}");
    Ok(())
}

fn outbound(place: &Place) -> Result<()> {
    let outbound = place.client.dial(Dial::new(&APP, at(VIP, 80)))?;
    let outbound = outbound.map_err(|errno| anyhow!("outbound: errno {errno}"))?;
    ensure!(outbound.accepted_by == 15001, "outbound: {outbound:?}");
    ensure!(outbound.client.peer == at(VIP, 80), "{outbound:?}");
    ensure!(
        outbound.server.original_v4 == Ok(at(VIP, 80)),
        "{outbound:?}"
    );
    Ok(())
}

/// Waits until something is so; not longer than the agent may take to notice.
fn wait(place: &Place, what: &str, mut is_so: impl FnMut() -> Result<bool>) -> Result<()> {
    let start = Instant::now();
    while !is_so()? {
        if start.elapsed() > NOTICED {
            bail!(
                "{what}: not after {NOTICED:?}\n{}",
                place.agent.places.log()
            );
        }
        thread::sleep(Duration::from_millis(20));
    }
    eprintln!("{what}: after {:?}", start.elapsed());
    Ok(())
}

fn status(places: &Places) -> Result<serde_json::Value> {
    places.json(&["status", "-o", "json"])
}

fn repairs(place: &Place) -> Result<u64> {
    let status = status(&place.agent.places)?;
    status["agent"]["repairs"].as_u64().context("a number")
}

/// Everything works again, somebody said so in the log, and it was counted.
fn healed(place: &Place, said: &str) -> Result<()> {
    works(place)?;
    let log = place.agent.places.log();
    ensure!(log.contains(said), "the log does not say {said:?}:\n{log}");
    wait(place, "counted", || Ok(repairs(place)? > 0))
}

fn pins(place: &Place) -> Result<Pins> {
    Ok(Pins::new(&place.lab.places().bpffs)?)
}

fn maps(place: &Place) -> Result<Maps> {
    Maps::open(&pins(place)?)
}

fn cookie(place: &Place) -> Result<u64> {
    let pod = place.agent.places.pod("test/app")?.context("the pod")?;
    pod["netns"]["cookie"].as_u64().context("its cookie")
}

fn links() -> Result<()> {
    let (place, _sidecar) = place(&[])?;
    let pins = pins(&place)?;
    let netns = fs::metadata(place.pod.path())?;
    let inode = std::os::unix::fs::MetadataExt::ino(&netns);
    let pod = pins.pod_link(cookie(&place)?);
    let cgroup = fs::metadata(&place.lab.places().cgroup)?;
    let cgroup = std::os::unix::fs::MetadataExt::ino(&cgroup);
    let mut before = Vec::new();
    for hook in &CGROUP_HOOKS {
        let link = sys::open_pin(&pins.link(hook.name))?;
        sys::link_detach(link.as_fd()).with_context(|| format!("detach {}", hook.name))?;
        ensure!(sys::link_cgroup(link.as_fd())? == 0, "{}", hook.name);
        before.push(link);
    }
    let link = sys::open_pin(&pod)?;
    sys::link_detach(link.as_fd()).context("detach the pod's link")?;
    ensure!(sys::link_netns(link.as_fd())? == 0);
    for hook in &CGROUP_HOOKS {
        wait(&place, hook.name, || {
            let link = sys::open_pin(&pins.link(hook.name))?;
            Ok(sys::link_cgroup(link.as_fd())? == cgroup)
        })?;
    }
    wait(&place, "sk_lookup", || {
        let link = sys::open_pin(&pod)?;
        Ok(sys::link_netns(link.as_fd())? == inode)
    })?;
    for hook in &CGROUP_HOOKS {
        healed(&place, &format!("hook {} was detached", hook.name))?;
    }
    healed(&place, "pod test/app: its sk_lookup link was detached")
}

/// `r0 = 1; exit`, for a hook.
fn stranger(name: &str, attach_type: bpf_attach_type) -> Result<OwnedFd> {
    let kind = bpf_prog_type::BPF_PROG_TYPE_CGROUP_SOCK_ADDR;
    passing(name, kind, attach_type)
}

fn passing(name: &str, kind: bpf_prog_type, attach_type: bpf_attach_type) -> Result<OwnedFd> {
    let mut set = bpf_insn {
        code: 0xb7,
        _bitfield_align_1: [],
        _bitfield_1: bpf_insn::new_bitfield_1(0, 0),
        off: 0,
        imm: 1,
    };
    let mut exit = set;
    exit.code = 0x95;
    exit.imm = 0;
    set.imm = 1;
    let program = sys::program_load(kind, Some(attach_type), name, &[set, exit]);
    program.context("load a program of another's")
}

fn swapped() -> Result<()> {
    let (place, _sidecar) = place(&[])?;
    let link = sys::open_pin(&pins(&place)?.link("connect4"))?;
    let own = sys::link_info(link.as_fd())?.prog_id;
    let other = stranger("st_fake", bpf_attach_type::BPF_CGROUP_INET4_CONNECT)?;
    sys::link_update(link.as_fd(), other.as_fd())?;
    wait(&place, "the own program", || {
        Ok(sys::link_info(link.as_fd())?.prog_id == own)
    })?;
    healed(&place, "hook connect4 had another program")?;
    // One that lets every arrival pass.
    let link = sys::open_pin(&pins(&place)?.pod_link(cookie(&place)?))?;
    let kind = bpf_prog_type::BPF_PROG_TYPE_SK_LOOKUP;
    let other = passing("st_fake", kind, bpf_attach_type::BPF_SK_LOOKUP)?;
    let theirs = sys::program_id(other.as_fd())?;
    sys::link_update(link.as_fd(), other.as_fd())?;
    wait(&place, "the pod's own program", || {
        Ok(sys::link_info(link.as_fd())?.prog_id != theirs)
    })?;
    healed(
        &place,
        "pod test/app: its sk_lookup link was detached or had another program",
    )
}

fn removed_pins() -> Result<()> {
    let (mut place, _sidecar) = place(&[])?;
    let pins = pins(&place)?;
    let pod = pins.pod_link(cookie(&place)?);
    let removed = [
        pins.link("connect4"),
        pins.link("getsockopt"),
        pins.map("POD_BY_NETNS"),
        pins.map("RECORD_BY_SOCK"),
        pod.clone(),
    ];
    for path in &removed {
        fs::remove_file(path).with_context(|| format!("remove {}", path.display()))?;
    }
    fs::remove_dir(pod.parent().context("a directory")?)?;
    // Nothing is detached, so nothing slips meanwhile.
    for path in &removed {
        wait(&place, &path.display().to_string(), || {
            works(&place)?;
            Ok(path.exists())
        })?;
    }
    healed(&place, "was gone: made it again")?;
    // What was pinned are the same objects: they outlive the agent.
    place.agent.end(Signal::SIGKILL)?;
    works(&place).context("without an agent")?;
    place.agent = Agent::start(place.lab.places())?;
    place.agent.places.wait_enrolled("test/app")?;
    works(&place).context("with a successor")
}

/// Somebody removes everything there is below the bpffs: whoever comes then finds it taken.
fn directory() -> Result<()> {
    let (place, _sidecar) = place(&[])?;
    let root = pins(&place)?.root().to_owned();
    fs::remove_dir_all(&root)?;
    wait(&place, "taken again", || {
        Ok(place.agent.places.log().contains("took it again"))
    })?;
    let mut other = place.lab.places().clone();
    other.socket = place.lab.dir().join("other.sock");
    let cleanup = other.output(&["cleanup"])?;
    let said = String::from_utf8_lossy(&cleanup.stderr).into_owned();
    ensure!(said.contains("an agent is running"), "{cleanup:?}");
    ensure!(root.exists(), "nothing is removed");
    healed(&place, "was gone: made it again")
}

/// A sidecar that began to listen while the kernel programs were away.
fn before_sidecar() -> Result<()> {
    let (place, _sidecar) = place(&[("sidetrack.dev/before-sidecar", "passthrough")])?;
    let maps = maps(&place)?;
    let cookie = cookie(&place)?;
    maps.before_sidecar.insert(&cookie, &1)?;
    let past = place.client.dial(Dial::new(&APP, at(VIP, 80)))?;
    ensure!(
        past.as_ref().is_ok_and(|past| past.accepted_by == 80),
        "{past:?}"
    );
    wait(&place, "the end of it", || {
        Ok(maps.before_sidecar.get(&cookie)?.is_none())
    })?;
    works(&place)
}

fn pod_row() -> Result<()> {
    let (place, _sidecar) = place(&[])?;
    let maps = maps(&place)?;
    let cookie = cookie(&place)?;
    let row = maps.pods.get(&cookie)?.context("its row")?;
    ensure!(maps.pods.remove(&cookie)?);
    wait(&place, "the row", || Ok(maps.pods.get(&cookie)?.is_some()))?;
    healed(&place, "rows of pod test/app were missing or different")?;
    let mut other = row;
    other.policy = 9999;
    other.flags = 0;
    maps.pods.insert(&cookie, &other)?;
    wait(&place, "the altered row", || {
        let now = maps.pods.get(&cookie)?.context("its row")?;
        Ok(now.policy == row.policy && now.flags == row.flags)
    })?;
    works(&place)
}

fn policy_rows() -> Result<()> {
    let (place, _sidecar) = place(&[
        (
            "traffic.sidecar.istio.io/excludeOutboundIPRanges",
            "192.0.2.0/24,198.51.100.0/24",
        ),
        ("traffic.sidecar.istio.io/excludeOutboundPorts", "81,82"),
    ])?;
    let maps = maps(&place)?;
    let id = u32::try_from(place.policy_id()?.as_u64().context("a policy")?)?;
    let port = *maps.ports.keys()?.first().context("a port")?;
    let range = *maps.ranges.keys()?.first().context("a range")?;
    let owner = maps.owners.keys()?.first().copied();
    let position = maps.ports.get(&port)?.context("its position")?;
    ensure!(maps.ports.remove(&port)? && maps.ranges.remove(&range)?);
    if let Some(owner) = &owner {
        maps.owners.remove(owner)?;
    }
    ensure!(maps.policies.remove(&id)?);
    wait(&place, "the policy", || {
        Ok(maps.policies.get(&id)?.is_some())
    })?;
    ensure!(maps.ports.get(&port)? == Some(position), "the port's row");
    ensure!(maps.ranges.get(&range)?.is_some(), "the range's row");
    if let Some(owner) = &owner {
        ensure!(maps.owners.get(owner)?.is_some(), "the owner's row");
    }
    healed(&place, "rows of policies were missing")?;
    // A row of a list by itself.
    maps.ports.insert(&port, &(position + 7))?;
    wait(&place, "the altered position", || {
        Ok(maps.ports.get(&port)? == Some(position))
    })
}

fn namespace() -> Result<()> {
    let (place, _sidecar) = place(&[("traffic.sidecar.istio.io/excludeInterfaces", "lo")])?;
    let maps = maps(&place)?;
    // The kernel itself goes on changing the routes of an IPv6 address for a while (DAD).
    let routes = loop {
        let before = maps.routes.rows()?;
        thread::sleep(Duration::from_millis(2500));
        if before == maps.routes.rows()? {
            break before;
        }
    };
    let ifaces = maps.ifaces.keys()?.len();
    ensure!(
        routes.len() > 1 && ifaces == 1,
        "{routes:?}, {ifaces} interfaces"
    );
    for route in maps.routes.keys()? {
        maps.routes.remove(&route)?;
    }
    for iface in maps.ifaces.keys()? {
        maps.ifaces.remove(&iface)?;
    }
    wait(&place, "routes and interfaces", || {
        // A row that says the same as the wider one above it may stay away.
        for (key, route) in &routes {
            if maps.routes.get(key)?.as_ref() != Some(route) {
                return Ok(false);
            }
        }
        Ok(maps.ifaces.keys()?.len() == ifaces)
    })?;
    healed(&place, "rows of pod test/app were missing or different")
}

fn listeners() -> Result<()> {
    let (place, _sidecar) = place(&[])?;
    let maps = maps(&place)?;
    // The agent has seen them.
    thread::sleep(Duration::from_millis(2500));
    let keys = maps.listeners.keys()?;
    ensure!(!keys.is_empty(), "a listener is known");
    for key in &keys {
        maps.listeners.remove(key)?;
    }
    wait(&place, "the listeners", || {
        Ok(!maps.listeners.keys()?.is_empty())
    })?;
    works(&place)?;
    // Those of one family.
    thread::sleep(Duration::from_millis(2500));
    let (v4, others): (Vec<_>, Vec<_>) = maps
        .listeners
        .keys()?
        .into_iter()
        .partition(|key| key.family == Family::V4 as u16);
    ensure!(!v4.is_empty() && !others.is_empty(), "{v4:?}, {others:?}");
    for key in &v4 {
        maps.listeners.remove(key)?;
    }
    wait(&place, "the listeners of IPv4", || {
        Ok(maps.listeners.keys()?.len() == v4.len() + others.len())
    })?;
    works(&place)
}

fn foreign_pod() -> Result<()> {
    const NOBODY: u64 = 0x5eed_0000_0001;
    let (place, _sidecar) = place(&[])?;
    let maps = maps(&place)?;
    let row = maps.pods.get(&cookie(&place)?)?.context("a row")?;
    maps.pods.insert(&NOBODY, &row)?;
    wait(&place, "the foreign pod", || {
        Ok(maps.pods.get(&NOBODY)?.is_none())
    })?;
    healed(&place, "a pod was there that nobody enrolled")
}

fn arrivals() -> Result<()> {
    let (place, _sidecar) = place(&[])?;
    let map = sys::open_pin(&pins(&place)?.map("ARRIVAL_PROGRAM"))?;
    let slot = 0_u32.to_ne_bytes();
    ensure!(sys::map_delete(map.as_fd(), &slot)?);
    wait(&place, "the program", || {
        let mut id = [0; 4];
        Ok(sys::map_lookup(map.as_fd(), &slot, &mut id)?)
    })?;
    healed(&place, "the program that judges arrivals was not in force")
}

fn strangers() -> Result<()> {
    let (mut place, _sidecar) = place(&[])?;
    let attach = |name: &str, attach_type| -> Result<OwnedFd> {
        let cgroup = fs::File::open(&place.lab.places().cgroup)?;
        let program = stranger(name, attach_type)?;
        Ok(sys::link_create(
            program.as_fd(),
            cgroup.as_fd(),
            attach_type,
        )?)
    };
    let told = |place: &Place, words: &[&str]| -> Result<bool> {
        let problems = status(&place.agent.places)?["agent"]["problems"].clone();
        let all = problems.as_array().cloned().unwrap_or_default();
        Ok(all
            .iter()
            .filter_map(|it| it.as_str())
            .any(|problem| words.iter().all(|word| problem.contains(word))))
    };
    let late = attach("tst_late", bpf_attach_type::BPF_CGROUP_INET4_CONNECT)?;
    let words = ["tst_late", "connect4", "runs after sidetrack's"];
    wait(&place, "the late one", || told(&place, &words))?;
    works(&place).context("it does nothing, and is left alone")?;
    let cgroup = fs::File::open(&place.lab.places().cgroup)?;
    let attached =
        sys::attached_programs(cgroup.as_fd(), bpf_attach_type::BPF_CGROUP_INET4_CONNECT)?;
    ensure!(attached.len() == 2, "{attached:?}");
    drop(late);
    wait(&place, "it is gone", || Ok(!told(&place, &["tst_late"])?))?;
    // One that was there first.
    place.agent.end(Signal::SIGTERM)?;
    let cleanup = place.lab.places().output(&["cleanup"])?;
    ensure!(cleanup.status.success(), "{cleanup:?}");
    let attach_type = bpf_attach_type::BPF_CGROUP_INET4_GETPEERNAME;
    let program = stranger("tst_early", attach_type)?;
    let _early = sys::link_create(program.as_fd(), cgroup.as_fd(), attach_type)?;
    place.agent = Agent::start(place.lab.places())?;
    let words = ["tst_early", "getpeername4", "runs before sidetrack's"];
    wait(&place, "the early one", || told(&place, &words))?;
    ensure!(repairs(&place)? == 0, "nothing was to repair");
    works(&place)
}

fn processes_below(cgroup: &Path, found: &mut Vec<(String, String)>) -> Result<()> {
    let name = cgroup.display().to_string();
    for pid in fs::read_to_string(cgroup.join("cgroup.procs"))?.lines() {
        found.push((pid.to_owned(), name.clone()));
    }
    for entry in fs::read_dir(cgroup)?.flatten() {
        if entry.file_type()?.is_dir() {
            processes_below(&entry.path(), found)?;
        }
    }
    Ok(())
}

fn cgroup_made_anew() -> Result<()> {
    let (place, _sidecar) = place(&[])?;
    let held = place.client.hold(Dial::new(&APP, at(VIP, 80)))?;
    ensure!(held.is_ok_and(|held| held.accepted_by == 15001));
    let cgroup = &place.lab.places().cgroup;
    let mut processes = Vec::new();
    processes_below(cgroup, &mut processes)?;
    ensure!(processes.len() >= 3, "{processes:?}");
    let parent = cgroup_root()?.join("cgroup.procs");
    for (pid, _) in &processes {
        fs::write(&parent, pid).with_context(|| format!("move {pid} out"))?;
    }
    fs::remove_dir(&place.pod.cgroup)?;
    fs::remove_dir(cgroup)?;
    fs::create_dir(cgroup)?;
    fs::create_dir(&place.pod.cgroup)?;
    for (pid, cgroup) in &processes {
        fs::write(format!("{cgroup}/cgroup.procs"), pid)?;
    }
    wait(&place, "the cgroup", || {
        Ok(place.agent.places.log().contains("was made anew"))
    })?;
    healed(&place, "attached all hooks to")?;
    // Both ends of what was open, of which the sockets belong to the cgroup that is gone.
    for again in place.client.again()? {
        let again = again.map_err(|errno| anyhow!("errno {errno}"))?;
        ensure!(again.client.peer == at(VIP, 80), "{again:?}");
        ensure!(again.server.original_v4 == Ok(at(VIP, 80)), "{again:?}");
    }
    ensure!(place.client.echo()? == 1);
    Ok(())
}

fn cgroup_away() -> Result<()> {
    let (mut place, _sidecar) = place(&[])?;
    place.agent.end(Signal::SIGTERM)?;
    let mount = place.lab.dir().join("cgroups");
    fs::create_dir(&mount)?;
    lab::private::mount_at("cgroup2", &mount)?;
    let name = place.lab.places().cgroup.file_name().context("a name")?;
    let mut places = place.lab.places().clone();
    places.cgroup = mount.join(name);
    let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?.to_string();
    drop(listener);
    let extra = Extra {
        arguments: &["--metrics-addr", &address],
        ..Extra::default()
    };
    place.agent = Agent::start_with(&places, &extra)?;
    place.agent.places.wait_enrolled("test/app")?;
    let is_told = || -> Result<bool> {
        let problems = status(&places)?["agent"]["problems"].to_string();
        Ok(problems.contains("is gone") && problems.contains("--cgroup PATH"))
    };
    nix::mount::umount2(&mount, nix::mount::MntFlags::MNT_DETACH)?;
    wait(&place, "told", is_told)?;
    works(&place).context("what is attached stays so")?;
    lab::private::mount_at("cgroup2", &mount)?;
    wait(&place, "back", || Ok(!is_told()?))?;
    works(&place)?;
    nix::mount::umount2(&mount, nix::mount::MntFlags::MNT_DETACH)?;
    // The same hooks in every kind of metrics.
    let answer = lab::command::run(&format!("curl -sf http://{address}/metrics"))?;
    for kind in ["cgroup", "link", "pin", "row"] {
        let line = format!("sidetrack_repairs_total{{what=\"{kind}\"}} 0");
        ensure!(answer.lines().any(|known| known == line), "{answer}");
    }
    Ok(())
}
