//! What hostile pods and clients cannot do; docs/security.md names these tests.

use std::{
    fs,
    io::{Read as _, Write as _},
    net::TcpStream,
    os::{
        fd::{AsFd as _, AsRawFd as _, FromRawFd as _, OwnedFd},
        unix::{
            fs::{MetadataExt as _, PermissionsExt as _},
            net::UnixStream,
            process::CommandExt as _,
        },
    },
    path::{Path, PathBuf},
    process::Command,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, anyhow, ensure};
use lab::product::CNI_REQUESTS_PATH;
use lab::{
    actor::Actor,
    agent::{Agent, Extra, limited},
    command::{output, run},
    network::{FIRST_OWN_USER, Lab, PodNet, manifest},
    protocol::{APP, Dial, Identity, PROXY, ROOT},
    sidecar,
};
use nix::sched::{CloneFlags, setns};

use crate::{OwnTest, fixture::at, lifecycle::Place};

const VIP: &str = "10.109.118.31";

pub fn tests() -> Vec<(&'static str, OwnTest)> {
    vec![
        ("security::a_pod_with_net_admin", net_admin),
        ("security::a_pod_with_its_own_users_as_root", own_users),
        ("security::a_sidecar_gets_its_own_pod_only", hostile_sidecar),
        ("security::the_socket_is_root_only", socket_mode),
        ("security::hostile_clients_of_the_socket", hostile_clients),
        ("security::metrics_tell_nothing_private", metrics),
    ]
}

/// A script as a container would run it: in the pod's cgroup and network namespace, without the node's
/// bpffs, cgroups and sidetrack's files.
fn contained(pod: &PodNet, lab: &Lab, script: &str) -> Command {
    const ENTER: &str = "echo $$ > $1/cgroup.procs; lab=$2; netns=$3; shift 3; \
        exec unshare --mount sh -ec 'lab=$1; netns=$2; shift 2; cd /; \
        for dir in $lab /sys/fs/bpf /sys/fs/cgroup; do mount -t tmpfs none $dir; done; \
        exec nsenter --net=$netns \"$@\"' sh $lab $netns \"$@\"";
    let mut command = Command::new("sh");
    command.args(["-ec", ENTER, "sh"]);
    command.arg(&pod.cgroup).arg(lab.dir()).arg(pod.path());
    let mut inner = Command::new("sh");
    inner.args(["-c", script]);
    let capabilities = ["NET_ADMIN".to_owned(), "NET_RAW".to_owned()];
    let inner = limited(&inner, &capabilities);
    command.arg(inner.get_program()).args(inner.get_args());
    command
}

/// What a pod may try, each with whether it is allowed to a pod with NET_ADMIN.
fn attempts(links: &[u64], programs: &[u64]) -> Vec<(String, bool)> {
    let ours = |what: &str| (what.to_owned(), true);
    let theirs = |what: String| (what, false);
    let mut all = vec![
        ours("iptables -t nat -F"),
        ours("iptables -t nat -X"),
        ours("iptables -F"),
        ours("ip6tables -t nat -F"),
        ours("ip route flush cache"),
        ours("ip rule show"),
        theirs("nsenter --net=/proc/1/ns/net true".to_owned()),
        theirs("unshare --net true".to_owned()),
        theirs("mount -t bpf bpf /mnt".to_owned()),
        theirs("mount -t cgroup2 none /mnt".to_owned()),
        theirs("bpftool prog show | grep st_".to_owned()),
        theirs("bpftool map show | grep HANDSHAKES".to_owned()),
        theirs("bpftool link show | grep prog".to_owned()),
    ];
    all.extend(
        links
            .iter()
            .map(|id| theirs(format!("bpftool link detach id {id}"))),
    );
    all.extend(
        programs
            .iter()
            .map(|id| theirs(format!("bpftool prog dump xlated id {id}"))),
    );
    all
}

/// Links and programs that are attached now.
fn attached(agent: &Agent) -> Result<(Vec<u64>, Vec<u64>)> {
    let status = agent.places.json(&["status", "-o", "json"])?;
    let hooks = status["hooks"].as_array().context("hooks")?;
    let ids = |name: &str| -> Result<Vec<u64>> {
        hooks
            .iter()
            .map(|hook| hook[name].as_u64().context("an id"))
            .collect()
    };
    let mut links = ids("link_id")?;
    for dir in fs::read_dir(agent.places.bpffs.join("sidetrack/v2/pods"))? {
        for pin in fs::read_dir(dir?.path())? {
            let pin = pin?.path();
            let shown = run(&format!("bpftool -j link show pinned {}", pin.display()))?;
            let shown: serde_json::Value = serde_json::from_str(&shown)?;
            links.push(shown["id"].as_u64().context("a link's id")?);
        }
    }
    Ok((links, ids("program_id")?))
}

/// Both directions are intercepted.
fn intercepted(place: &Place, app: &Identity) -> Result<()> {
    let out = place.client.dial(Dial::new(app, at(VIP, 80)))?;
    let out = out.map_err(|errno| anyhow!("outbound: errno {errno}"))?;
    ensure!(out.accepted_by == 15001, "outbound: {out:?}");
    ensure!(
        out.server.original_v4 == Ok(at(VIP, 80)),
        "outbound: {out:?}"
    );
    let arrived = place.outside.dial(Dial::new(&ROOT, at("10.77.0.2", 80)))?;
    let arrived = arrived.map_err(|errno| anyhow!("inbound: errno {errno}"))?;
    ensure!(arrived.accepted_by == 15006, "inbound: {arrived:?}");
    Ok(())
}

/// Tries everything, and looks after each whether the pod is intercepted.
fn try_all(
    place: &Place,
    app: &Identity,
    allowed: bool,
    mut run: impl FnMut(&str) -> Result<bool>,
) -> Result<()> {
    let (links, programs) = attached(&place.agent)?;
    ensure!(links.len() == 7, "the hooks and the pod's: {links:?}");
    // What is refused below is there to be had.
    for look in [
        "bpftool prog show | grep st_",
        "bpftool map show | grep HANDSHAKES",
    ] {
        ensure!(output(&["sh", "-c", look])?.status.success(), "{look}");
    }
    for (attempt, own) in attempts(&links, &programs) {
        let succeeded = run(&attempt)?;
        ensure!(
            succeeded == (own && allowed),
            "`{attempt}` {}",
            if succeeded { "succeeded" } else { "failed" }
        );
        intercepted(place, app).with_context(|| format!("after `{attempt}`"))?;
    }
    Ok(())
}

fn net_admin() -> Result<()> {
    let place = Place::new()?;
    let _sidecar = sidecar::start(&place.pod, &[80])?;
    place.enroll(&[])?;
    intercepted(&place, &APP)?;
    let run = |script: &str| -> Result<bool> {
        let output = contained(&place.pod, &place.lab, script).output()?;
        Ok(output.status.success())
    };
    ensure!(run("true")?, "the container itself");
    ensure!(run("! ls /sys/fs/bpf/* 2>&1 >/dev/null || false")?);
    try_all(&place, &APP, true, run)?;
    // Its own routes and addresses are its own: what it changes is followed.
    for change in [
        "ip route replace default via 10.77.0.254 src 10.77.0.2",
        "ip address add 10.77.9.9/16 dev eth0",
        "ip route add 10.201.0.0/16 via 10.77.0.254",
        "ip link set eth0 mtu 1400",
    ] {
        ensure!(run(change)?, "{change}");
        intercepted(&place, &APP).with_context(|| format!("after `{change}`"))?;
    }
    // Without a route nothing goes anywhere, and so not past the sidecar.
    ensure!(run("ip route del default")?);
    let start = Instant::now();
    loop {
        let out = place.client.dial(Dial::new(&APP, at(VIP, 80)))?;
        match out {
            Err(libc::ENETUNREACH) => return Ok(()),
            Ok(out) if out.accepted_by != 15001 => return Err(anyhow!("{out:?}")),
            _ => ensure!(
                start.elapsed() < Duration::from_secs(2),
                "not followed: {out:?}"
            ),
        }
    }
}

/// Root with all capabilities in the user namespace that owns the pod's network namespace.
fn own_users() -> Result<()> {
    let mut lab = Lab::new()?;
    lab.add_outside(VIP)?;
    let pod = lab.pod_with_own_users("app", 2)?;
    let outside = lab.outside().actor()?;
    outside.listen(&ROOT, at("0.0.0.0", 80))?;
    let inside = |user: &Identity| Identity::of(FIRST_OWN_USER + user.uid);
    let agent = Agent::start(lab.places())?;
    let place = Place {
        client: pod.actor()?,
        outside,
        agent,
        pod,
        lab,
    };
    let sidecar = place.pod.actor()?;
    for port in [15001, 15006] {
        sidecar::listen(&sidecar, &inside(&PROXY), port)?;
    }
    place.enroll(&[])?;
    let app = inside(&APP);
    intercepted(&place, &app)?;
    let run = |script: &str| -> Result<bool> {
        let output = inside_own_users(&place.pod, script)?.output()?;
        Ok(output.status.success())
    };
    // It is root there, and administers its network.
    ensure!(run("test $(id -u) = 0 && ip link set eth0 mtu 1400")?);
    ensure!(run("grep -q 'CapEff:.*1ffffffffff' /proc/self/status")?);
    let (links, programs) = attached(&place.agent)?;
    let ids = links
        .iter()
        .map(|id| format!("bpftool link detach id {id}"));
    let more = programs
        .iter()
        .map(|id| format!("bpftool prog dump xlated id {id}"));
    let others = [
        "nsenter --net=/proc/1/ns/net true",
        "bpftool map show | grep HANDSHAKES",
    ];
    for attempt in ids.chain(more).chain(others.map(str::to_owned)) {
        ensure!(!run(&attempt)?, "`{attempt}` succeeded");
        intercepted(&place, &app).with_context(|| format!("after `{attempt}`"))?;
    }
    for own in [
        "ip address add 10.77.9.9/16 dev eth0",
        "ip route flush cache",
    ] {
        ensure!(run(own)?, "{own}");
        intercepted(&place, &app).with_context(|| format!("after `{own}`"))?;
    }
    Ok(())
}

/// A script as root of the user namespace that a pod's network namespace belongs to.
fn inside_own_users(pod: &PodNet, script: &str) -> Result<Command> {
    const NS_GET_USERNS: libc::c_ulong = 0xb701;
    let netns = fs::File::open(pod.path())?;
    // SAFETY: the request takes nothing and answers a new descriptor.
    let users = unsafe {
        let number = libc::ioctl(netns.as_raw_fd(), NS_GET_USERNS);
        ensure!(number >= 0, "no user namespace owns {}", pod.netns);
        OwnedFd::from_raw_fd(number)
    };
    let cgroup = pod.cgroup.join("cgroup.procs");
    let mut command = Command::new("sh");
    command.args(["-c", script]);
    // SAFETY: system calls and a write, nothing that another thread could hold a lock of.
    unsafe {
        command.pre_exec(move || {
            fs::write(&cgroup, std::process::id().to_string())?;
            setns(netns.as_fd(), CloneFlags::CLONE_NEWNET)?;
            setns(users.as_fd(), CloneFlags::CLONE_NEWUSER)?;
            nix::unistd::setgid(0.into())?;
            nix::unistd::setuid(0.into())?;
            Ok(())
        });
    }
    Ok(command)
}

/// The sidecar of one pod listens everywhere and on everything it may; connections of another pod, which
/// has none, do not get to it.
fn hostile_sidecar() -> Result<()> {
    let mut lab = Lab::new()?;
    lab.add_outside(VIP)?;
    // The same addresses: only the network namespace tells them apart.
    let hostile = lab.pod_at("hostile", "10.77.0.7", "fd77::7")?;
    let victim = lab.pod_at("victim", "10.77.0.7", "fd77::7")?;
    for (name, pod) in [("hostile", &hostile), ("victim", &victim)] {
        lab.write_manifest(name, &manifest(name, pod, &[]))?;
    }
    let agent = Agent::start(lab.places())?;
    for name in ["test/hostile", "test/victim"] {
        agent.places.wait_enrolled(name)?;
    }
    let _sidecar = sidecar::start(&hostile, &[80, 8080])?;
    let client = victim.actor()?;
    for to in [at(VIP, 80), at("[fd99::31]".trim_matches(['[', ']']), 80)] {
        for user in [&APP, &ROOT] {
            let result = client.dial(Dial::new(user, to))?;
            ensure!(
                matches!(result, Err(libc::ECONNREFUSED | libc::ENETUNREACH)),
                "{to}: {result:?}"
            );
        }
    }
    // What it asks of its own sockets are its own destinations.
    let own = hostile.actor()?;
    let theirs = own.dial(Dial::new(&APP, at("10.200.0.1", 80)))?;
    let theirs = theirs.map_err(|errno| anyhow!("errno {errno}"))?;
    ensure!(
        theirs.server.original_v4 == Ok(at("10.200.0.1", 80)),
        "{theirs:?}"
    );
    // A sidecar that comes up in the victim has the victim's.
    let _late: Actor = sidecar::start(&victim, &[])?;
    let result = client.dial(Dial::new(&APP, at(VIP, 80)))?;
    let result = result.map_err(|errno| anyhow!("errno {errno}"))?;
    ensure!(result.server.original_v4 == Ok(at(VIP, 80)), "{result:?}");
    Ok(())
}

fn socket_mode() -> Result<()> {
    let mut lab = Lab::new()?;
    let pod = lab.pod("app", 2)?;
    let agent = Agent::start(lab.places())?;
    let socket = &agent.places.socket;
    let meta = fs::metadata(socket)?;
    ensure!(
        meta.mode() & 0o777 == 0o600 && meta.uid() == 0,
        "{:o}",
        meta.mode()
    );
    // Also where nothing above it keeps people out.
    fs::set_permissions(lab.dir(), fs::Permissions::from_mode(0o755))?;
    let ask = format!(
        "curl -s --unix-socket {} http://a/v1/status",
        socket.display()
    );
    let words: Vec<&str> = ask.split(' ').collect();
    let as_root = output(&words)?;
    ensure!(as_root.status.success(), "{as_root:?}");
    let user = "setpriv --reuid 1000 --regid 1000 --clear-groups --";
    let as_user: Vec<&str> = user.split(' ').chain(words).collect();
    let refused = output(&as_user)?;
    ensure!(
        !refused.status.success() && refused.stdout.is_empty(),
        "{refused:?}"
    );
    // Of the pins others may learn the names, if the mount lets them.
    for pin in walk(&agent.places.bpffs.join("sidetrack/v2"))? {
        let meta = fs::metadata(&pin)?;
        ensure!(
            meta.mode() & 0o077 == 0 && meta.uid() == 0,
            "{}: {:o}",
            pin.display(),
            meta.mode()
        );
    }
    // A pod has no path to it.
    let out = contained(&pod, &lab, &ask).output()?;
    ensure!(!out.status.success() && out.stdout.is_empty(), "{out:?}");
    Ok(())
}

/// Files below a directory.
fn walk(dir: &Path) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            files.extend(walk(&entry.path())?);
        } else {
            files.push(entry.path());
        }
    }
    Ok(files)
}

fn descriptors(agent: &Agent) -> Result<usize> {
    Ok(fs::read_dir(format!("/proc/{}/fd", agent.pid()))?.count())
}

/// Sends bytes and reads what comes back until the other end closes.
fn exchange(socket: &Path, bytes: &[u8]) -> Result<(String, Duration)> {
    let start = Instant::now();
    let mut stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(Duration::from_secs(10)))?;
    // It may be closed before all of it is written.
    let _ = stream.write_all(bytes);
    let mut answer = Vec::new();
    let read = stream.read_to_end(&mut answer);
    let took = start.elapsed();
    match read {
        Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
            Err(anyhow!("still open after {took:?}"))
        }
        _ => Ok((String::from_utf8_lossy(&answer).into_owned(), took)),
    }
}

fn hostile_clients() -> Result<()> {
    /// More than are served at a time.
    const SILENT: usize = 700;
    let mut lab = Lab::new()?;
    let pod = lab.pod("app", 2)?;
    lab.write_manifest("app", &manifest("app", &pod, &[]))?;
    let agent = Agent::start(lab.places())?;
    agent.places.wait_enrolled("test/app")?;
    let before = descriptors(&agent)?;
    let socket = &agent.places.socket;
    // Garbage.
    for bytes in [
        &b"\0\x01\xff\xfe garbage\r\n\r\n"[..],
        b"GET /v1/../../etc/passwd HTTP/1.1\r\nhost: a\r\n\r\n",
        b"POST /v1/status HTTP/1.1\r\nhost: a\r\ncontent-length: 0\r\n\r\n",
        &[b'a'; 1 << 20],
    ] {
        let (answer, _) = exchange(socket, bytes)?;
        let status = answer.split(' ').nth(1).unwrap_or_default();
        ensure!(
            answer.is_empty() || status.starts_with('4'),
            "{answer:.200}"
        );
    }
    let post = |length: usize, body: &[u8]| {
        let head = format!(
            "POST {CNI_REQUESTS_PATH} HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n"
        );
        exchange(socket, &[head.as_bytes(), body].concat())
    };
    // What is no question; more than there may be; and what does not come.
    let (answer, _) = post(2, b"[]")?;
    ensure!(answer.starts_with("HTTP/1.1 422"), "{answer}");
    let (answer, _) = post(2 << 20, &vec![b' '; 2 << 20])?;
    ensure!(answer.starts_with("HTTP/1.1 413"), "{answer}");
    let (answer, took) = post(100, b"{")?;
    ensure!(
        answer.starts_with("HTTP/1.1 408") && took < Duration::from_secs(5),
        "after {took:?}: {answer}"
    );
    // Many that say nothing: whoever has a question waits a moment behind them.
    let silent: Vec<UnixStream> = (0..SILENT)
        .map(|_| UnixStream::connect(socket))
        .collect::<std::io::Result<_>>()?;
    thread::sleep(Duration::from_millis(200));
    let most = descriptors(&agent)?;
    ensure!(most < before + 600, "{before} descriptors became {most}");
    let start = Instant::now();
    let status = agent.places.json(&["status", "-o", "json"])?;
    let took = start.elapsed();
    ensure!(status["agent"]["ready"] == true, "{status}");
    ensure!(took < Duration::from_secs(8), "status took {took:?}");
    // The agent's own work does not wait for them.
    let more: Vec<UnixStream> = (0..SILENT / 2)
        .map(|_| UnixStream::connect(socket))
        .collect::<std::io::Result<_>>()?;
    lab.remove_manifest("app")?;
    let start = Instant::now();
    while !agent.places.map("POD_BY_NETNS")?.is_empty() {
        ensure!(start.elapsed() < Duration::from_secs(2), "the loop hangs");
    }
    drop((silent, more));
    let start = Instant::now();
    while descriptors(&agent)? > before + 8 {
        ensure!(
            start.elapsed() < Duration::from_secs(10),
            "descriptors stay"
        );
        thread::sleep(Duration::from_millis(50));
    }
    Ok(())
}

fn metrics() -> Result<()> {
    const IDLE: usize = 150;
    let mut lab = Lab::new()?;
    lab.add_outside(VIP)?;
    let pod = lab.pod("zebra", 2)?;
    let text = manifest(
        "zebra",
        &pod,
        &[("traffic.sidecar.istio.io/excludeOutboundPorts", "47113")],
    );
    lab.write_manifest("zebra", &text)?;
    let port = std::net::TcpListener::bind("127.0.0.1:0")?
        .local_addr()?
        .port();
    let address = format!("127.0.0.1:{port}");
    let agent = Agent::start_with(
        lab.places(),
        &Extra {
            arguments: &["--metrics-addr", &address],
            ..Extra::default()
        },
    )?;
    agent.places.wait_enrolled("test/zebra")?;
    let _sidecar = sidecar::start(&pod, &[])?;
    let dialed = pod.actor()?.dial(Dial::new(&APP, at(VIP, 80)))?;
    ensure!(dialed.is_ok(), "{dialed:?}");
    // Whoever reaches the port may keep it busy for a while, not for good.
    let before = descriptors(&agent)?;
    let idle: Vec<TcpStream> = (0..IDLE)
        .map(|_| TcpStream::connect(&address))
        .collect::<std::io::Result<_>>()?;
    thread::sleep(Duration::from_millis(200));
    ensure!(
        descriptors(&agent)? <= before + 70,
        "{}",
        descriptors(&agent)?
    );
    let mut all = String::new();
    for path in [
        "/metrics",
        "/healthz",
        "/readyz",
        "/",
        "/v1/pods",
        "/v1/status",
    ] {
        all += &run(&format!("curl -s -m 20 http://{address}{path}"))?;
    }
    drop(idle);
    ensure!(
        all.contains("sidetrack_connections_total{rule=\"out-all\"} 1"),
        "{all}"
    );
    ensure!(
        all.contains("sidetrack_map_rows{map=\"POD_BY_NETNS\"} 1"),
        "{all}"
    );
    ensure!(
        all.contains("sidetrack_map_capacity{map=\"HANDSHAKES\"} 65536"),
        "{all}"
    );
    let row = agent.places.pod("test/zebra")?.context("the pod")?;
    let cookie = row["netns"]["cookie"].to_string();
    let inode = row["netns"]["inode"].to_string();
    for private in [
        "zebra", "uid-of", "test/", "10.77.", "fd77", VIP, "47113", "netns/", &inode,
    ] {
        ensure!(!all.contains(private), "{private} is told:\n{all}");
    }
    let values = all.lines().filter_map(|line| line.rsplit(' ').next());
    ensure!(cookie.len() < 4 || !values.into_iter().any(|value| value == cookie));
    Ok(())
}
