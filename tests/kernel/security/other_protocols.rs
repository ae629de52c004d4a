//! Sockets that rules for TCP do not match: they go where they are sent, as with iptables, and leave no row.

use std::{
    path::Path,
    process::{Child, Stdio},
};

use anyhow::{Context as _, Result, ensure};
use lab::{
    agent::Agent,
    command::die_with_parent,
    network::{Lab, PodNet},
    node::VIP,
    sidecar,
};
use socket2::{Domain, Socket, Type};

/// Linux 7.1 removed UDP-Lite.
const UDP_LITE: libc::c_int = 136;

/// Answers a datagram of UDP-Lite.
const ANSWER: &str = "import socket, sys
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM, 136)
s.bind((sys.argv[1], 80))
print('bound', flush=True)
data, peer = s.recvfrom(100)
s.sendto(data + b' from ' + peer[0].encode(), peer)
";
/// Asks by a connected socket of UDP-Lite.
const ASK: &str = "import socket, sys
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM, 136)
s.settimeout(5)
s.connect((sys.argv[1], 80))
s.send(b'asked')
print(s.getpeername(), s.recv(100))
";
/// Sends a SYN past every socket: by a raw socket, then by a packet socket.
const SYNS: &str = "import socket, struct, sys
tcp = struct.pack('!HHIIBBHHH', 5555, 80, 1, 0, 5 << 4, 2, 1024, 0, 0)
raw = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_TCP)
raw.sendto(tcp, (sys.argv[1], 0))
packet = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(0x800))
ip = struct.pack('!BBHHHBBH4s4s', 0x45, 0, 40, 1, 0, 64, 6, 0, socket.inet_aton('10.77.0.2'), socket.inet_aton(sys.argv[1]))
packet.sendto(ip + tcp, ('eth0', 0x800, 0, 0, b'\\x02\\0\\x0a\\x4d\\0\\xfe'))
print('sent')
";

fn python(pod: &PodNet, user: u32, script: &str) -> Result<Child> {
    let mut command = pod.command(user, Path::new("/usr/bin/python3"), &["-c", script, VIP]);
    command.stdout(Stdio::piped());
    die_with_parent(&mut command)
        .spawn()
        .context("start /usr/bin/python3")
}

fn output(child: Child) -> Result<String> {
    let output = child.wait_with_output()?;
    ensure!(output.status.success(), "{output:?}");
    Ok(String::from_utf8(output.stdout)?)
}

kernel_test!(protocols_without_rules_are_untouched);
fn protocols_without_rules_are_untouched() -> Result<()> {
    let mut lab = Lab::new()?;
    lab.add_outside(VIP)?;
    let pod = lab.pod("app", 2)?;
    lab.write_pod("app", &pod, &[])?;
    let agent = Agent::start(lab.places())?;
    agent.places.wait_enrolled("test/app")?;
    let _sidecar = sidecar::start(&pod, &[])?;
    let maps = lab.places().maps()?;
    let rows = || -> Result<(usize, usize)> {
        Ok((
            maps.handshakes.keys()?.len(),
            maps.destinations.keys()?.len(),
        ))
    };
    let before = rows()?;
    if has_udp_lite()? {
        asks_by_udp_lite(&lab, &pod)?;
    } else {
        eprintln!("security: skipped, this kernel has no UDP-Lite");
    }
    ensure!(output(python(&pod, 0, SYNS)?)?.contains("sent"));
    ensure!(rows()? == before, "{before:?} became {:?}", rows()?);
    Ok(())
}

fn asks_by_udp_lite(lab: &Lab, pod: &PodNet) -> Result<()> {
    let mut server = python(&lab.outside(), 0, ANSWER)?;
    let mut bound = [0; 6];
    std::io::Read::read_exact(server.stdout.as_mut().context("its output")?, &mut bound)?;
    let asked = output(python(pod, 1000, ASK)?)?;
    ensure!(
        asked.contains(&format!("('{VIP}', 80)")) && asked.contains("asked from 10.77.0.2"),
        "{asked}"
    );
    output(server)?;
    Ok(())
}

/// Anything but a kernel without the protocol is an error.
fn has_udp_lite() -> Result<bool> {
    match Socket::new(Domain::IPV4, Type::DGRAM, Some(UDP_LITE.into())) {
        Ok(_) => Ok(true),
        Err(e) if e.raw_os_error() == Some(libc::EPROTONOSUPPORT) => Ok(false),
        Err(e) => Err(e).context("open a UDP-Lite socket"),
    }
}
