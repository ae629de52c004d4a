//! Pods that use DNS capture against others, and servers that answer as another.

use std::{
    io::{BufRead as _, BufReader, Write as _},
    path::Path,
    process::Stdio,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use lab::{
    command::{Process, run_words},
    hanging::HangingFs,
    protocol::{APP, ROOT},
};
use nix::sys::signal::Signal;

use super::{CAPTURE, DNS, DnsFixture, OTHER};
use crate::fixture::{POD, VIP};

const PYTHON: &str = "/usr/bin/python3";

impl DnsFixture {
    /// What a script of the app prints.
    fn script(&self, text: &str, arguments: &[&str]) -> Result<String> {
        let words = [&["-c", text], arguments].concat();
        let mut command = self.fixture.pod.command(APP.uid, Path::new(PYTHON), &words);
        let output = command.output()?;
        let problem = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        ensure!(output.status.success(), "{problem}");
        Ok(String::from_utf8(output.stdout)?.trim().to_owned())
    }
}

kernel_test!(ten_thousand_sockets_get_their_answers);
fn ten_thousand_sockets_get_their_answers() -> Result<()> {
    const SOCKETS: usize = 10_000;
    // Every socket stays open until all have their answers.
    const SCRIPT: &str = r#"
import resource, socket, sys
count, servers = int(sys.argv[1]), sys.argv[2:]
resource.setrlimit(resource.RLIMIT_NOFILE, resource.getrlimit(resource.RLIMIT_NOFILE)[1:] * 2)
right, sockets = 0, []
for number in range(count):
    one = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    one.settimeout(5)
    server = (servers[number % 2], 53)
    if number % 3:
        one.connect(server)
        one.send(b"query")
    else:
        one.sendto(b"query", server)
    right += one.recvfrom(100)[1] == server
    sockets.append(one)
print(right)
"#;
    let dns = DnsFixture::new(&[VIP[0], OTHER[0]])?;
    dns.enroll(&dns.manifest(&["--redirect-dns"]))?;
    let said = dns.script(SCRIPT, &[&SOCKETS.to_string(), VIP[0], OTHER[0]])?;
    ensure!(said == SOCKETS.to_string(), "{said} of {SOCKETS}");
    // What the sockets held is free again, and connections have their room.
    ensure!(dns.fixture.accepted_by()? == 15001);
    let usage = dns.fixture.agent.places.json(&["status", "-o", "json"])?;
    ensure!(usage["problems"] == serde_json::json!([]), "{usage}");
    Ok(())
}

kernel_test!(a_resolv_conf_that_hangs_delays_nothing);
/// It is on a file system that never answers.
fn a_resolv_conf_that_hangs_delays_nothing() -> Result<()> {
    let mut dns = DnsFixture::new(&[VIP[0]])?;
    let path = dns.resolv_conf();
    let hanging = HangingFs::mount(path.parent().context("its directory")?)?;
    dns.enroll(&dns.manifest(&["--redirect-dns"]))?;
    let places = &dns.fixture.agent.places;
    // It is read again and again, as far as the first read allows.
    thread::sleep(Duration::from_secs(3));
    let status = places.json(&["status", "-o", "json"])?;
    ensure!(status["problems"] == serde_json::json!([]), "{status}");
    ensure!(dns.fixture.accepted_by()? == 15001);
    let took = dns.fixture.agent.end(Signal::SIGTERM)?;
    ensure!(took < Duration::from_secs(5), "{took:?}");
    drop(hanging);
    Ok(())
}

kernel_test!(a_resolv_conf_that_never_rests_is_followed_at_a_measured_pace);
fn a_resolv_conf_that_never_rests_is_followed_at_a_measured_pace() -> Result<()> {
    const TIME: Duration = Duration::from_secs(8);
    /// It is read once a second.
    const MAX_CHANGES: u32 = 8 + 2;
    let dns = DnsFixture::new(&[VIP[0]])?;
    dns.enroll(&dns.manifest(&["--redirect-dns"]))?;
    let places = &dns.fixture.agent.places;
    let (done, start) = (AtomicBool::new(false), Instant::now());
    let mut policies = Vec::new();
    thread::scope(|scope| -> Result<()> {
        let writer = scope.spawn(|| -> Result<u32> {
            let mut writes = 0;
            while !done.load(Ordering::Relaxed) {
                let server = format!("198.51.100.{}", writes % 250 + 1);
                dns.write_resolv_conf(&[&server])?;
                writes += 1;
                thread::sleep(Duration::from_millis(10));
            }
            Ok(writes)
        });
        let watched = (|| {
            while start.elapsed() < TIME {
                policies.push(places.whole_pod("test/app")?.policy_id);
                // The agent answers, and TCP is captured all the while.
                ensure!(dns.fixture.accepted_by()? == 15001);
                thread::sleep(Duration::from_millis(50));
            }
            Ok(())
        })();
        done.store(true, Ordering::Relaxed);
        let writes = writer.join().expect("the writer")?;
        ensure!(writes > 100, "{writes} writes");
        watched
    })?;
    policies.dedup();
    let changes = policies.len() as u32;
    ensure!((2..=MAX_CHANGES).contains(&changes), "{changes} changes");
    // The last word counts.
    dns.write_resolv_conf(&[OTHER[0]])?;
    dns.wait_port(OTHER[0], CAPTURE)?;
    dns.wait_port(VIP[0], DNS).map(drop)
}

kernel_test!(an_answer_from_another_address_is_not_accepted);
fn an_answer_from_another_address_is_not_accepted() -> Result<()> {
    /// Answers queries from another port, or from another address.
    const SERVER: &str = r#"
import socket
queries = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
queries.bind(("127.0.0.1", 15053))
other_port = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
other_port.bind(("127.0.0.1", 15054))
other_address = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
other_address.bind(("127.0.0.2", 15053))
print("ready", flush=True)
while True:
    query, sender = queries.recvfrom(100)
    for answer in other_port, other_address:
        answer.sendto(b"wrong", sender)
    queries.sendto(b"right", sender)
"#;
    /// What a socket receives, and from where.
    const CLIENT: &str = r#"
import socket, sys
server = (sys.argv[1], 53)
for connected in False, True:
    one = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    one.settimeout(2)
    if connected:
        one.connect(server)
        one.send(b"query")
    else:
        one.sendto(b"query", server)
    answers = []
    while b"right" not in [answer for answer, _ in answers]:
        answers.append(one.recvfrom(100))
    of_server = [answer for answer, sender in answers if sender == server]
    if of_server != [b"right"]:
        sys.exit(f"connected {connected}: {answers}")
    print(len(answers))
"#;
    let mut dns = DnsFixture::new(&[VIP[0]])?;
    dns.sidecar.take();
    dns.enroll(&dns.manifest(&["--redirect-dns"]))?;
    let pod = &dns.fixture.pod;
    let mut server = pod.command(1337, Path::new(PYTHON), &["-c", SERVER]);
    let mut server = Process::start(server.stdout(Stdio::piped()))?;
    let stdout = server.stdout.take().context("its output")?;
    BufReader::new(stdout).read_line(&mut String::new())?;
    let said = dns.script(CLIENT, &[VIP[0]])?;
    // A socket that is not connected receives them all, as without sidetrack; a connected one only the server's.
    ensure!(said == "3\n1", "{said}");
    Ok(())
}

kernel_test!(an_app_does_not_send_as_a_server);
/// What names a server in the pod is an address that each process may bind.
fn an_app_does_not_send_as_a_server() -> Result<()> {
    const APP: &str = r#"
import socket
def attempt(kind, call):
    own = socket.socket(socket.AF_INET, kind)
    own.bind(("127.64.1.2", 15053))
    try:
        call(own)
    except OSError:
        return
    raise SystemExit(f"{kind} was sent")
target = ("127.0.0.1", 40404)
server = socket.create_server(target)
socket.create_connection(target)
attempt(socket.SOCK_DGRAM, lambda own: own.sendto(b"forged", target))
attempt(socket.SOCK_DGRAM, lambda own: own.connect(target))
attempt(socket.SOCK_STREAM, lambda own: own.connect(target))
print("refused")
"#;
    let dns = DnsFixture::new(&[VIP[0]])?;
    dns.enroll(&dns.manifest(&["--redirect-dns"]))?;
    ensure!(dns.script(APP, &[])? == "refused");
    let why = dns.fixture.agent.places.output(&["why", "test/app"])?;
    let why = String::from_utf8(why.stdout)?;
    ensure!(why.contains("unknown-target"), "{why}");
    Ok(())
}

/// A process of the pod that names a source in its message.
const NAMING: &str = r#"
import socket, struct, sys
forging = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
forging.bind(("127.0.0.2", 15053))
source = struct.pack("=I4s4s", 0, socket.inet_aton(sys.argv[1]), bytes(4))
try:
    forging.sendmsg([b"forged"], [(socket.IPPROTO_IP, 8, source)], 0, ("127.0.0.1", 40404))
except PermissionError:
    sys.exit()
sys.exit("sent")
"#;

kernel_test!(a_neighbor_does_not_answer_as_a_server);
/// What names a server in the pod is an address that anything outside may send from.
fn a_neighbor_does_not_answer_as_a_server() -> Result<()> {
    /// Answers with the address that the query came from.
    const SERVER: &str = r#"
import socket, sys
queries = socket.socket(socket.AF_INET6 if ":" in sys.argv[1] else socket.AF_INET, socket.SOCK_DGRAM)
queries.bind((sys.argv[1], 15053))
print("ready", flush=True)
while True:
    _, sender = queries.recvfrom(100)
    queries.sendto(sender[0].encode(), sender)
"#;
    /// Prints what names the server. After a line of input, prints what else has come, and asks again.
    const CLIENT: &str = r#"
import socket, sys
server = (sys.argv[1], 53)
asking = socket.socket(socket.AF_INET6 if ":" in server[0] else socket.AF_INET, socket.SOCK_DGRAM)
asking.bind(("", 40404))
asking.settimeout(1)
def ask():
    asking.sendto(b"query", server)
    print(asking.recvfrom(100)[0].decode(), flush=True)
ask()
sys.stdin.readline()
try:
    print("received", asking.recvfrom(100), flush=True)
except TimeoutError:
    print("nothing", flush=True)
ask()
"#;
    const NEIGHBOR: &str = r#"
import socket, sys
name, victim = sys.argv[1:]
forging = socket.socket(socket.AF_INET6 if ":" in name else socket.AF_INET, socket.SOCK_DGRAM)
forging.bind((name, 15053))
for _ in range(3):
    forging.sendto(b"forged", (victim, 40404))
"#;
    let mut dns = DnsFixture::new(&VIP)?;
    dns.sidecar.take();
    dns.enroll(&dns.manifest(&["--redirect-dns"]))?;
    let (pod, outside) = (&dns.fixture.pod, dns.fixture.lab.outside());
    // As on nodes with kube-proxy: addresses of 127.0.0.0/8 may come from outside.
    for netns in [&pod.netns, &outside.netns] {
        let setting = "net.ipv4.conf.all.route_localnet=1";
        run_words(&["ip", "netns", "exec", netns, "sysctl", "-qw", setting])?;
    }
    let python = Path::new(PYTHON);
    for family in [0, 1] {
        let mut server = pod.command(1337, python, &["-c", SERVER, ["127.0.0.1", "::1"][family]]);
        let mut server = Process::start(server.stdout(Stdio::piped()))?;
        let stdout = server.stdout.take().context("its output")?;
        BufReader::new(stdout).read_line(&mut String::new())?;
        let mut client = pod.command(APP.uid, python, &["-c", CLIENT, VIP[family]]);
        let mut client = Process::start(client.stdin(Stdio::piped()).stdout(Stdio::piped()))?;
        let mut input = client.stdin.take().context("its input")?;
        let output = client.stdout.take().context("its output")?;
        let mut lines = BufReader::new(output).lines();
        let mut line = || lines.next().context("a line").and_then(|it| Ok(it?));
        let name = line()?;
        if family == 1 {
            outside.ip(&format!("address add {name}/128 dev lo nodad"))?;
        }
        let words = ["-c", NEIGHBOR, &name, POD[family]];
        let sent = outside.command(ROOT.uid, python, &words).output()?;
        ensure!(sent.status.success(), "{sent:?}");
        if family == 0 {
            let mut naming = pod.command(APP.uid, python, &["-c", NAMING, &name]);
            let sent = naming.output()?;
            ensure!(sent.status.success(), "{sent:?}");
        }
        input.write_all(b"\n")?;
        ensure!(line()? == "nothing");
        ensure!(line()? == name);
    }
    let why = dns.fixture.agent.places.output(&["why", "test/app"])?;
    let why = String::from_utf8(why.stdout)?;
    ensure!(why.contains("unknown-target"), "{why}");
    Ok(())
}
