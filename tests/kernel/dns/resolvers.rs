//! Real resolvers in the pod. Real servers stand as the sidecar's and outside, with other answers.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
    thread,
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use lab::{
    command::{Process, run_words},
    deploy::{checkout, lacks},
    network::PodNet,
    wait::eventually,
};

use super::{CAPTURE, DNS, DnsFixture, LOOPBACK, OTHER};
use crate::fixture::VIP;

/// The users of the pod, as `PodNet::command` has them.
const APP: u32 = 1000;
const PROXY: u32 = 1337;
const ROOT: u32 = 0;
/// A name with an address of each family.
const NAME: &str = "name.example";
/// What the sidecar says of it, and the servers outside.
const OF_SIDECAR: [&str; 2] = ["192.0.2.7", "2001:db8:7::7"];
const OF_OUTSIDE: [&str; 2] = ["203.0.113.9", "2001:db8:9::9"];
/// A name with so many addresses of each family that they do not fit into a datagram.
const LARGE: &str = "large.example";
const ADDRESSES: usize = 100;
/// Where systemd-resolved listens.
const STUB: &str = "127.0.0.53";
const DIG: &str = "/usr/bin/dig";

/// A program that prints the addresses of a name.
#[derive(Debug)]
struct Resolver {
    name: &'static str,
    program: PathBuf,
    arguments: Vec<String>,
    /// Whether it asks over TCP when an answer is truncated. musl does since 1.2.4.
    falls_back: bool,
}

/// What a program prints, in the order of the text.
fn lines(command: &mut Command) -> Result<Vec<String>> {
    printed(command.output()?)
}

/// The same of one that has ended.
fn printed(output: Output) -> Result<Vec<String>> {
    let mut lines: Vec<_> = String::from_utf8(output.stdout)?
        .lines()
        .map(str::to_owned)
        .collect();
    lines.sort();
    lines.dedup();
    ensure!(
        output.status.success(),
        "{}: {}",
        lines.join(" "),
        String::from_utf8_lossy(&output.stderr).trim()
    );
    Ok(lines)
}

fn sorted(addresses: [&str; 2]) -> Vec<String> {
    let mut all = addresses.map(str::to_owned).to_vec();
    all.sort();
    all
}

/// Builds what has to be built.
fn resolvers(dir: &Path) -> Result<Vec<Resolver>> {
    let sources = [
        ("resolve.c", include_str!("resolvers/resolve.c")),
        ("resolve.go", include_str!("resolvers/resolve.go")),
        ("resolve.js", include_str!("resolvers/resolve.js")),
        ("resolve.py", include_str!("resolvers/resolve.py")),
        ("many.py", include_str!("resolvers/many.py")),
    ];
    for (name, text) in sources {
        fs::write(dir.join(name), text)?;
    }
    let path = |name: &str| dir.join(name).display().to_string();
    let source = path("resolve.c");
    run_words(&["cc", "-o", &path("glibc"), &source])?;
    run_words(&["musl-gcc", "-static", "-o", &path("musl"), &source])?;
    let mut go = Command::new("go");
    go.args(["build", "-o", &path("go"), &path("resolve.go")])
        .env("CGO_ENABLED", "0")
        .env("GO111MODULE", "off")
        .env("GOFLAGS", "")
        .env("GOCACHE", dir.join("go-cache"))
        .env("HOME", dir);
    lines(&mut go).context("go build")?;
    let built = |name: &'static str, falls_back| Resolver {
        name,
        program: dir.join(name),
        arguments: Vec::new(),
        falls_back,
    };
    let script = |name, program: &str, script| Resolver {
        name,
        program: PathBuf::from(program),
        arguments: vec![path(script)],
        falls_back: true,
    };
    Ok(vec![
        built("glibc", true),
        built("musl", false),
        built("go", true),
        script("python", "/usr/bin/python3", "resolve.py"),
        script("node", "/usr/bin/node", "resolve.js"),
    ])
}

/// A server that has [`NAME`] and [`LARGE`], at addresses of a network namespace.
fn dnsmasq(
    place: &PodNet,
    (user, port): (u32, u16),
    at: &[&str],
    answers: [&str; 2],
    dir: &Path,
) -> Result<Process> {
    let hosts = dir.join(format!("hosts-{port}"));
    let mut text: String = answers.map(|it| format!("{it} {NAME}\n")).concat();
    for number in 0..ADDRESSES {
        text += &format!("198.51.100.{number} {LARGE}\n2001:db8::{number:x} {LARGE}\n");
    }
    fs::write(&hosts, text)?;
    let mut arguments = vec![
        "--keep-in-foreground".to_owned(),
        "--conf-file=/dev/null".to_owned(),
        "--no-resolv".to_owned(),
        "--no-hosts".to_owned(),
        "--pid-file=".to_owned(),
        "--user=root".to_owned(),
        "--log-facility=-".to_owned(),
        // What it does not have does not exist.
        "--local=/example/".to_owned(),
        format!("--addn-hosts={}", hosts.display()),
        format!("--port={port}"),
    ];
    arguments.extend(at.iter().map(|it| format!("--listen-address={it}")));
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let mut command = place.command(user, Path::new("/usr/sbin/dnsmasq"), &arguments);
    Process::start(command.stderr(Stdio::null()))
}

/// systemd-resolved with a server, as a user of the pod, who may not be allowed to see the checkout.
fn resolved(pod: &PodNet, server: &str) -> Result<Process> {
    const START: &str = "program=$1; libraries=$2; server=$3; \
        mount -t tmpfs tmpfs /run && \
        mkdir -p /run/systemd/resolve /run/systemd/resolved.conf.d && \
        chown 1500:1500 /run/systemd/resolve && \
        printf '[Resolve]\nDNS=%s\nLLMNR=no\nMulticastDNS=no\nDNSSEC=no\nCache=no\n' $server \
            > /run/systemd/resolved.conf.d/test.conf && \
        mkdir /run/program && cp $program /run/program && \
        { [ ! -d $libraries ] || cp $libraries/* /run/program; } && \
        exec setpriv --reuid 1500 --regid 1500 --clear-groups \
            --inh-caps +net_bind_service,+net_raw,+setpcap \
            --ambient-caps +net_bind_service,+net_raw,+setpcap \
            env LD_LIBRARY_PATH=/run/program /run/program/systemd-resolved";
    let unpacked = checkout("target/tools/resolved");
    let places = [
        unpacked.join("usr/lib/systemd"),
        unpacked.join("lib/systemd"),
        "/usr/lib/systemd".into(),
    ];
    let programs = places.iter().map(|it| it.join("systemd-resolved"));
    let program = programs.into_iter().find(|path| path.exists());
    let program = program.context("no systemd-resolved: run `cargo xtask setup`")?;
    let triple = format!("usr/lib/{}-linux-gnu/systemd", std::env::consts::ARCH);
    let libraries = unpacked.join(triple);
    let [program, libraries] = [program, libraries].map(|it| it.display().to_string());
    let arguments = ["-c", START, "sh", &program, &libraries, server];
    let mut command = pod.command(ROOT, Path::new("/bin/sh"), &arguments);
    Process::start(command.stderr(Stdio::null()))
}

/// A pod with the sidecar's server and resolvers, and servers outside.
struct Resolving {
    // Before the pod, whose cgroup is removed with it.
    servers: Vec<Process>,
    resolvers: Vec<Resolver>,
    dns: DnsFixture,
}

impl Resolving {
    /// With these servers in its resolv.conf.
    fn new(servers: &[&str]) -> Result<Self> {
        let dns = DnsFixture::without_servers(servers)?;
        let (lab, pod) = (&dns.fixture.lab, &dns.fixture.pod);
        let dir = lab.dir();
        let outside = lab.outside();
        let all = [VIP, OTHER].concat();
        let started = vec![
            dnsmasq(&outside, (ROOT, DNS), &all, OF_OUTSIDE, dir)?,
            dnsmasq(pod, (PROXY, CAPTURE), &LOOPBACK, OF_SIDECAR, dir)?,
        ];
        let resolvers = resolvers(dir)?;
        let this = Self {
            servers: started,
            resolvers,
            dns,
        };
        for (server, port) in [(VIP[0], DNS), (LOOPBACK[0], CAPTURE)] {
            let port = port.to_string();
            eventually(Duration::from_secs(10), || {
                this.dig(
                    PROXY,
                    &[&format!("@{server}"), "-p", &port, "+time=1", NAME],
                )
            })?;
        }
        Ok(this)
    }

    fn command(&self, user: u32, program: &Path, arguments: &[&str]) -> Command {
        self.dns.fixture.pod.command(user, program, arguments)
    }

    /// What dig prints in short.
    fn dig(&self, user: u32, arguments: &[&str]) -> Result<Vec<String>> {
        let all = [&["+short", "+tries=1"], arguments].concat();
        let found = lines(&mut self.command(user, Path::new(DIG), &all))?;
        ensure!(!found.is_empty(), "no answer: dig {}", all.join(" "));
        Ok(found)
    }

    fn resolving(&self, resolver: &Resolver, user: u32, name: &str) -> Command {
        let arguments = resolver.arguments.iter().map(String::as_str);
        let arguments: Vec<&str> = arguments.chain([name]).collect();
        self.command(user, &resolver.program, &arguments)
    }

    fn resolve(&self, resolver: &Resolver, user: u32, name: &str) -> Result<Vec<String>> {
        lines(&mut self.resolving(resolver, user, name))
            .with_context(|| format!("{} as user {user}: {name}", resolver.name))
    }

    /// Every resolver gets the sidecar's answers, and those outside if it is the proxy.
    fn all_are_captured(&self) -> Result<()> {
        for resolver in &self.resolvers {
            for (user, wanted) in [(APP, OF_SIDECAR), (PROXY, OF_OUTSIDE)] {
                let found = self.resolve(resolver, user, NAME)?;
                let wanted = sorted(wanted);
                ensure!(found == wanted, "{} as {user}: {found:?}", resolver.name);
            }
            if resolver.falls_back {
                let found = self.resolve(resolver, APP, LARGE)?.len();
                ensure!(found == 2 * ADDRESSES, "{}: {found}", resolver.name);
            }
        }
        Ok(())
    }

    /// Queries to servers from one socket.
    fn many(&self, count: usize, servers: &[&str]) -> Result<()> {
        let script = self.dns.fixture.lab.dir().join("many.py");
        let (script, number) = (script.display().to_string(), count.to_string());
        let arguments = [&[script.as_str(), &number], servers].concat();
        let python = Path::new("/usr/bin/python3");
        let said = lines(&mut self.command(APP, python, &arguments))?;
        ensure!(said == [format!("{count} 0 0")], "{servers:?}: {said:?}");
        Ok(())
    }
}

kernel_test!(resolvers_are_answered_by_the_sidecar);
fn resolvers_are_answered_by_the_sidecar() -> Result<()> {
    if lacks("dns", "resolvers") {
        return Ok(());
    }
    let here = Resolving::new(&[VIP[0], OTHER[0], VIP[1]])?;
    let dns = &here.dns;
    dns.enroll(&dns.manifest(&["--redirect-dns"]))?;
    here.all_are_captured()?;
    for server in [VIP[0], OTHER[0], VIP[1]] {
        let at = format!("@{server}");
        for options in [&["+notcp"][..], &["+tcp"], &["+noedns"], &["+bufsize=4096"]] {
            let [v4, v6] = ["A", "AAAA"]
                .map(|kind| here.dig(APP, &[&[at.as_str()], options, &[kind, NAME]].concat()));
            let found = [v4?, v6?].concat();
            ensure!(found == OF_SIDECAR, "{at} {options:?}: {found:?}");
        }
        // One is truncated, the other fits.
        for size in ["+bufsize=512", "+bufsize=4096"] {
            let found = here.dig(APP, &[&at, size, LARGE])?.len();
            ensure!(found == ADDRESSES, "{at} {size}: {found}");
        }
    }
    // Not listed.
    let at = format!("@{}", OTHER[1]);
    ensure!(here.dig(APP, &[&at, "AAAA", NAME])? == [OF_OUTSIDE[1]]);
    here.many(10_000, &[VIP[0], OTHER[0]])?;
    // The kernel's first server of the family answers all that one socket asks over IPv6.
    here.many(10_000, &[VIP[1]])
}

kernel_test!(a_local_resolver_is_asked_by_the_sidecar_alone);
fn a_local_resolver_is_asked_by_the_sidecar_alone() -> Result<()> {
    if lacks("dns", "resolvers") {
        return Ok(());
    }
    let here = Resolving::new(&[STUB])?;
    let _resolved = resolved(&here.dns.fixture.pod, VIP[0])?;
    let ask = |user| here.dig(user, &[&format!("@{STUB}"), "+time=1", NAME]);
    // The servers that it asks itself are not those of resolv.conf.
    let dns = &here.dns;
    eventually(Duration::from_secs(10), || ask(APP))?;
    ensure!(ask(APP)? == [OF_OUTSIDE[0]]);
    dns.enroll(&dns.manifest(&["--redirect-dns"]))?;
    ensure!(ask(APP)? == [OF_SIDECAR[0]]);
    ensure!(ask(PROXY)? == [OF_OUTSIDE[0]]);
    let glibc = &here.resolvers[0];
    let found = here.resolve(glibc, APP, NAME)?;
    ensure!(found == sorted(OF_SIDECAR), "{found:?}");
    // With all servers captured it asks the sidecar.
    dns.enroll(&dns.manifest(&["--redirect-dns", "--capture-all-dns"]))?;
    dns.fixture.wait("systemd-resolved is captured", || {
        Ok(ask(PROXY)? == [OF_SIDECAR[0]])
    })?;
    Ok(())
}

kernel_test!(resolvers_over_ipv6_are_answered_by_the_sidecar);
fn resolvers_over_ipv6_are_answered_by_the_sidecar() -> Result<()> {
    if lacks("dns", "resolvers") {
        return Ok(());
    }
    let here = Resolving::new(&[VIP[1], OTHER[1]])?;
    let dns = &here.dns;
    dns.enroll(&dns.manifest(&["--redirect-dns"]))?;
    here.all_are_captured()
}

kernel_test!(lookups_that_begin_before_the_sidecar_listens_succeed);
/// Their own retry gets the answer: no error of the first query may end them.
fn lookups_that_begin_before_the_sidecar_listens_succeed() -> Result<()> {
    if lacks("dns", "resolvers") {
        return Ok(());
    }
    for servers in [[VIP[0], OTHER[0]], [VIP[1], OTHER[1]]] {
        let mut here = Resolving::new(&servers)?;
        let dns = &here.dns;
        dns.enroll(&dns.manifest(&["--redirect-dns"]))?;
        // The sidecar's.
        here.servers.pop();
        let mut started = Vec::new();
        for resolver in &here.resolvers {
            let mut command = here.resolving(resolver, APP, NAME);
            let command = command.stdout(Stdio::piped()).stderr(Stdio::piped());
            started.push((resolver.name, command.spawn()?));
        }
        // All have asked once.
        thread::sleep(Duration::from_secs(1));
        let (pod, dir) = (&here.dns.fixture.pod, here.dns.fixture.lab.dir());
        let _server = dnsmasq(pod, (PROXY, CAPTURE), &LOOPBACK, OF_SIDECAR, dir)?;
        for (name, resolver) in started {
            let found = printed(resolver.wait_with_output()?).context(name)?;
            ensure!(found == sorted(OF_SIDECAR), "{name}: {found:?}");
        }
    }
    Ok(())
}
