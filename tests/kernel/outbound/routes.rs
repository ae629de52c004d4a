//! Unusual destinations, routes and devices.

use std::path::Path;

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use lab::{
    protocol::{APP, Connected, Dial, Identity, PROXY, ROOT},
    sidecar,
};

use crate::{
    facilities::refusal,
    fixture::{
        Arrives::{Fails, Sidecar, Untouched},
        POD, PodFixture, SharedFixture, VIP, at, check,
    },
};

shared_test!(unspecified_destinations);
fn unspecified_destinations(fixture: &SharedFixture) -> Result<()> {
    for (creator, source, to, meant, arrives, seen_as) in [
        (&APP, None, "0.0.0.0", "127.0.0.1", Untouched, "127.0.0.1"),
        (&APP, None, "::", "::1", Untouched, "::1"),
        (
            &PROXY,
            Some(POD[0]),
            "0.0.0.0",
            POD[0],
            Sidecar(15006),
            POD[0],
        ),
        (&PROXY, None, "::", "::1", Untouched, "::1"),
    ] {
        let mut dial = Dial::new(creator, at(to, 80));
        dial.source = source.map(|source| at(source, 0));
        let result = fixture.dial(dial)?;
        check(&result, arrives, seen_as, at(meant, 80))
            .with_context(|| format!("uid {} from {source:?} to {to}", creator.uid))?;
    }
    Ok(())
}

shared_test!(routes_that_refuse);
fn routes_that_refuse(fixture: &SharedFixture) -> Result<()> {
    for (to, errno) in [
        ("10.201.0.1", libc::EINVAL),
        ("10.202.0.1", libc::EHOSTUNREACH),
        ("10.203.0.1", libc::EACCES),
        ("fdb1::1", libc::EINVAL),
        ("fdb2::1", libc::EHOSTUNREACH),
        ("fdb3::1", libc::EACCES),
        ("224.0.0.1", libc::ENETUNREACH),
        ("255.255.255.255", libc::ENETUNREACH),
        ("10.77.255.255", libc::ENETUNREACH),
        ("ff02::1", libc::ENETUNREACH),
    ] {
        // The proxy is not captured, so what it gets is the kernel's own word.
        fixture.row(&PROXY, at(to, 80), Fails(errno), "")?;
        fixture.row(&APP, at(to, 80), Fails(refusal(errno)), "")?;
    }
    Ok(())
}

shared_test!(bound_to_a_device);
/// Under iptables this times out, and nothing passes the sidecar. The redirect takes the binding off, which
/// the kernel allows to sockets of CAP_NET_RAW; others are refused.
fn bound_to_a_device(fixture: &SharedFixture) -> Result<()> {
    for vip in VIP {
        let to = at(vip, 80);
        let dial = |creator: &Identity| -> Result<Result<Connected, i32>> {
            let mut dial = Dial::new(creator, to);
            dial.device = Some("eth0".to_owned());
            fixture.dial(dial)
        };
        let refused = dial(&APP)?;
        ensure!(refused == Err(libc::ECONNREFUSED), "to {to}: {refused:?}");
        let connected = dial(&ROOT)?.map_err(|errno| anyhow!("to {to}: errno {errno}"))?;
        ensure!(connected.accepted_by == 15001, "{connected:?}");
        ensure!(connected.client.peer == to, "{connected:?}");
        let original = if to.is_ipv4() {
            connected.server.original_v4
        } else {
            connected.server.original_v6
        };
        ensure!(original == Ok(to), "{original:?}");
    }
    Ok(())
}

shared_test!(bound_to_a_device_of_no_own_address);
/// The kernel passes over the routes of the pod's own addresses that are another device's: with `route_localnet` such a
/// packet leaves the pod, and iptables would redirect it.
fn bound_to_a_device_of_no_own_address(fixture: &SharedFixture) -> Result<()> {
    let dial = |creator: &Identity, to: &str, device: &str| -> Result<Result<Connected, i32>> {
        let mut dial = Dial::new(creator, at(to, 80));
        dial.device = Some(device.to_owned());
        fixture.dial(dial)
    };
    let refused = dial(&APP, "127.0.0.2", "eth0")?;
    ensure!(refused == Err(libc::ECONNREFUSED), "{refused:?}");
    let redirected = dial(&ROOT, "127.0.0.2", "eth0")?;
    let by_sidecar = |made: &Connected| made.accepted_by == 15001;
    ensure!(redirected.as_ref().is_ok_and(by_sidecar), "{redirected:?}");
    for creator in [&APP, &ROOT] {
        for (to, device) in [
            ("127.0.0.2", "lo"),
            ("0.0.0.0", "eth0"),
            (POD[0], "eth0"),
            (POD[1], "eth0"),
        ] {
            let made = dial(creator, to, device)?;
            let is_own = made.as_ref().is_ok_and(|made| made.accepted_by == 80);
            ensure!(is_own, "to {to} by {device}: {made:?}");
        }
    }
    let why = fixture.agent.places.output(&["why", "test/app"])?;
    let text = String::from_utf8_lossy(&why.stdout);
    ensure!(text.contains("bound-device"), "{text}");
    Ok(())
}

shared_test!(routing_headers);
/// Routing headers and source routes lead the packets to another host than the one that is evaluated. Routing headers
/// need no privilege, source routes do on newer kernels.
fn routing_headers(fixture: &SharedFixture) -> Result<()> {
    let dial = |creator: &Identity, to: &str| -> Result<Result<Connected, i32>> {
        let mut dial = Dial::new(creator, at(to, 80));
        let is_v4 = dial.destination.is_ipv4();
        dial.segment = Some(at(VIP[usize::from(!is_v4)], 0).ip());
        fixture.dial(dial)
    };
    for (creator, to) in [
        (&ROOT, VIP[0]),
        (&ROOT, POD[0]),
        (&APP, VIP[1]),
        (&APP, POD[1]),
        (&APP, "::1"),
    ] {
        let outcome = dial(creator, to)?;
        ensure!(
            outcome.as_ref().err() == Some(&libc::ECONNREFUSED),
            "to {to}: {outcome:?}"
        );
    }
    // The proxy goes where it likes: whatever becomes of it, it is not refused.
    let privileged = Identity::with_gid(ROOT.uid, PROXY.gid);
    for (proxy, to) in [(&privileged, VIP[0]), (&PROXY, VIP[1])] {
        let outcome = dial(proxy, to)?;
        ensure!(
            outcome.as_ref().err() != Some(&libc::ECONNREFUSED),
            "{outcome:?}"
        );
    }
    Ok(())
}

/// Connects to each place and then sets each option that leads packets elsewhere; prints what came of it, and whether the
/// connection is still there.
const OPTIONS_AFTER_CONNECT: &str = r"
import socket, struct, sys
route4 = bytes([1, 131, 7, 4]) + socket.inet_aton(sys.argv[1])
route6 = bytes([0, 2, 4, 0, 0, 0, 0, 0]) + socket.inet_pton(socket.AF_INET6, sys.argv[2])
header = struct.pack('@QII', 16 + len(route6), 41, 57) + route6
eth0 = socket.if_nametoindex('eth0')
every = [(1, 25, b'eth0'), (1, 62, struct.pack('@i', eth0))]
of_family = {
    socket.AF_INET: [(0, 4, route4)],
    socket.AF_INET6: [(41, 57, route6), (41, 5, route6), (41, 6, header)],
}
for to in sys.argv[3:]:
    to, _, protocol = to.partition('/')
    family = socket.AF_INET6 if ':' in to else socket.AF_INET
    options = every + of_family[family]
    if protocol:
        # The one that MPTCP passes on to its subflows.
        options = [(41, 6, header)]
    client = socket.socket(family, socket.SOCK_STREAM, int(protocol or 0))
    client.settimeout(5)
    client.connect((to, 80))
    client.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if not protocol:
        client.setsockopt(socket.SOL_SOCKET, 25, b'')
    for level, name, value in options:
        try:
            client.setsockopt(level, name, value)
            print(to, level, name, 'set')
        except OSError as error:
            print(to, level, name, error.errno)
    try:
        client.sendall(b'x' * 100000)
        print(to, 'sends')
    except OSError as error:
        print(to, error.errno)
    client.close()
";

kernel_test!(options_after_connect);
/// Most need no privilege, and connect has decided already.
fn options_after_connect() -> Result<()> {
    let fixture = PodFixture::new()?;
    let _sidecar = sidecar::start(&fixture.pod, &[80])?;
    fixture.enroll(&[])?;
    let python = Path::new("/usr/bin/python3");
    let run = |places: &[&str]| -> Result<String> {
        let words = [&["-c", OPTIONS_AFTER_CONNECT, VIP[0], VIP[1]], places].concat();
        let output = fixture.pod.command(ROOT.uid, python, &words).output()?;
        ensure!(output.status.success(), "{output:?}");
        Ok(String::from_utf8(output.stdout)?)
    };
    let said = run(&[VIP[0], VIP[1]])?;
    let refused = |line: &&str| line.ends_with(" 1");
    ensure!(said.lines().filter(refused).count() == 8, "{said}");
    ensure!(
        said.lines().filter(|it| it.ends_with("sends")).count() == 2,
        "{said}"
    );
    let pod = fixture
        .agent
        .places
        .json(&["why", "test/app", "-o", "json"])?;
    ensure!(pod.to_string().contains("socket-option"), "{pod}");
    // Of connections that are not redirected the interface is their own business, and another hop is not: with iptables
    // packets to it would be another connection.
    for (own, level) in [("127.0.0.1", 0), (POD[0], 0), ("::1", 41), (POD[1], 41)] {
        let said = run(&[own])?;
        ensure!(said.contains(&format!("{own} 1 25 set")), "{said}");
        let of_hop = said
            .lines()
            .filter(|it| it.starts_with(&format!("{own} {level} ")));
        let (refused, others): (Vec<_>, Vec<_>) = of_hop.partition(refused);
        ensure!(!refused.is_empty() && others.is_empty(), "{said}");
        ensure!(said.contains(&format!("{own} sends")), "{said}");
    }
    if std::fs::exists("/proc/sys/net/mptcp/enabled")? {
        let own = POD[1];
        let said = run(&[&format!("{own}/262")])?;
        ensure!(said == format!("{own} 41 6 1\n{own} sends\n"), "{said}");
    }
    Ok(())
}

/// Sets IP_OPTIONS by the system call of 64-bit programs, and by that of 32-bit ones, which every program can call; the same
/// of the original destination.
#[cfg(target_arch = "x86_64")]
const OPTION_BY_32_BIT_CALL: &str = "
import ctypes, mmap, socket, sys
calls = mmap.mmap(-1, 4096, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x40, 7)
# call(fd, level, name, value, size, number), with its arguments in the registers of int 0x80
calls.write(bytes.fromhex('534489c889fb4189ca89f14489d64489c7cd805bc3'))
option = b'\\x01' * 4
calls[2048:2052] = option
start = ctypes.addressof(ctypes.c_char.from_buffer(calls))
call = ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_uint] * 6)(start)
client = socket.create_connection((sys.argv[1], 80))
try:
    client.setsockopt(0, 4, option)
    print(0)
except OSError as error:
    print(-error.errno)
SETSOCKOPT, GETSOCKOPT, SO_ORIGINAL_DST = 366, 365, 80
print(call(client.fileno(), 0, 4, start + 2048, 4, SETSOCKOPT))
client.getsockopt(0, SO_ORIGINAL_DST, 16)
calls[3072:3076] = (16).to_bytes(4, 'little')
print(call(client.fileno(), 0, SO_ORIGINAL_DST, start + 2048, start + 3072, GETSOCKOPT) != 0)
";

#[cfg(target_arch = "x86_64")]
kernel_test!(options_by_32_bit_calls_are_not_seen);
/// The kernel runs no program of a cgroup for them (`do_sock_setsockopt`, net/socket.c): a gap that docs/security.md names.
#[cfg(target_arch = "x86_64")]
fn options_by_32_bit_calls_are_not_seen() -> Result<()> {
    let fixture = PodFixture::new()?;
    let _sidecar = sidecar::start(&fixture.pod, &[80])?;
    fixture.enroll(&[])?;
    let words = ["-c", OPTION_BY_32_BIT_CALL, VIP[0]];
    let mut app = fixture
        .pod
        .command(APP.uid, Path::new("/usr/bin/python3"), &words);
    let output = app.output()?;
    let said = String::from_utf8(output.stdout)?;
    let [by_64, by_32, "True"] = said.lines().collect::<Vec<_>>()[..] else {
        bail!("{said}{}", String::from_utf8_lossy(&output.stderr));
    };
    // Without CONFIG_IA32_EMULATION there are no such calls.
    let no_call = (-libc::ENOSYS).to_string();
    ensure!(by_64 == "-1" && ["0", &no_call].contains(&by_32), "{said}");
    Ok(())
}

const OTHER_SOURCE_IN_IPV4: &str = "
import socket, sys
for to in sys.argv[1:]:
    client = socket.socket(socket.AF_INET6)
    client.setsockopt(socket.IPPROTO_IPV6, 78, 1)
    client.setsockopt(socket.IPPROTO_IP, 24, 1)
    client.bind(('2001:db8::a01:203', 0))
    client.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    try:
        client.connect(('::ffff:' + to, 80))
        print(to, client.recv(100))
    except OSError as error:
        print(to, error.errno)
";

kernel_test!(an_ipv6_socket_has_another_source_in_ipv4);
/// It is 127.0.0.6, with which the kernel does not let it leave the pod.
fn an_ipv6_socket_has_another_source_in_ipv4() -> Result<()> {
    let fixture = PodFixture::new()?;
    let python = Path::new("/usr/bin/python3");
    let words = ["-c", OTHER_SOURCE_IN_IPV4, VIP[0]];
    let run = || -> Result<String> {
        let output = fixture.pod.command(APP.uid, python, &words).output()?;
        ensure!(output.status.success(), "{output:?}");
        Ok(String::from_utf8(output.stdout)?)
    };
    let expected = format!("{} 22\n", VIP[0]);
    let plain = run()?;
    ensure!(plain == expected, "without sidetrack: {plain}");
    let _sidecar = sidecar::start(&fixture.pod, &[80])?;
    fixture.enroll(&[])?;
    let said = run()?;
    ensure!(said == expected, "{said}");
    Ok(())
}
