//! A socket load balancer above the pods' cgroup: its programs run after sidetrack's.

use std::{
    fs,
    net::{IpAddr, SocketAddr},
    os::fd::{AsFd as _, OwnedFd},
    path::Path,
    time::Duration,
};

use anyhow::{Context as _, Result, anyhow, ensure};
use aya_obj::generated::{bpf_attach_type, bpf_insn, bpf_prog_type};
use lab::{
    actor::Actor,
    agent::{Agent, Places},
    network::{GATEWAY, Lab, PodNet, manifest},
    product::sys,
    protocol::{APP, Connected, Dial, Identity, PROXY, ROOT},
    sidecar,
    udp::SendUdp,
    wait::eventually,
};

use crate::fixture::{Arrives, POD, VIP, at, check, original};

/// The port of the application behind the service's 80.
const APP_PORT: u16 = 8080;
/// A service that has no endpoints.
const NO_ENDPOINTS: [&str; 2] = ["10.109.118.34", "fd99::34"];
/// Where the servers of DNS are that are behind the service's 53.
const RESOLVER: [&str; 2] = [GATEWAY, "fd77::fe"];
const DNS: u16 = 53;
const RESOLVER_PORT: u16 = 5353;
/// Where the sidecar answers queries.
const CAPTURE: u16 = 15053;
const EPERM: i32 = 1;

/// One service, as Cilium's programs have it: connect and sendmsg put an endpoint in place of it, getpeername and
/// recvmsg do the reverse, and what has no endpoint is refused.
struct Balancer {
    _links: Vec<OwnedFd>,
}

/// Offsets in `struct bpf_sock_addr`, and the register that holds it.
const USER_IP4: i16 = 4;
const USER_IP6: i16 = 8;
const USER_PORT: i16 = 24;
const CONTEXT: u8 = 1;

/// What is put in place of an address; nothing if that is refused.
type Rule = (SocketAddr, Option<SocketAddr>);

impl Balancer {
    fn attach(cgroup: &Path) -> Result<Self> {
        let cgroup = fs::File::open(cgroup)?;
        let mut links = Vec::new();
        for (name, hook, code) in programs() {
            let program = load(name, hook, &code)?;
            links.push(sys::link_create(program.as_fd(), cgroup.as_fd(), hook)?);
        }
        Ok(Self { _links: links })
    }
}

fn programs() -> Vec<(&'static str, bpf_attach_type, Vec<bpf_insn>)> {
    use bpf_attach_type as Hook;
    let hooks = [
        [
            ("tst_connect4", Hook::BPF_CGROUP_INET4_CONNECT),
            ("tst_connect6", Hook::BPF_CGROUP_INET6_CONNECT),
        ],
        [
            ("tst_send4", Hook::BPF_CGROUP_UDP4_SENDMSG),
            ("tst_send6", Hook::BPF_CGROUP_UDP6_SENDMSG),
        ],
        [
            ("tst_peer4", Hook::BPF_CGROUP_INET4_GETPEERNAME),
            ("tst_peer6", Hook::BPF_CGROUP_INET6_GETPEERNAME),
        ],
        [
            ("tst_receive4", Hook::BPF_CGROUP_UDP4_RECVMSG),
            ("tst_receive6", Hook::BPF_CGROUP_UDP6_RECVMSG),
        ],
    ];
    let mut all = Vec::new();
    for (family, vip) in VIP.into_iter().enumerate() {
        let endpoints = [
            (at(vip, 80), at(POD[family], APP_PORT)),
            (at(vip, DNS), at(RESOLVER[family], RESOLVER_PORT)),
        ];
        let mut there: Vec<Rule> = endpoints.map(|(from, to)| (from, Some(to))).into();
        there.push((at(NO_ENDPOINTS[family], 80), None));
        let back = endpoints.map(|(from, to)| (to, Some(from)));
        for (hooks, rules) in hooks.iter().zip([&there[..], &there, &back, &back]) {
            let (name, hook) = hooks[family];
            all.push((name, hook, translation(rules)));
        }
    }
    all
}

fn load(name: &str, hook: bpf_attach_type, code: &[bpf_insn]) -> Result<OwnedFd> {
    let kind = bpf_prog_type::BPF_PROG_TYPE_CGROUP_SOCK_ADDR;
    sys::program_load(kind, Some(hook), name, code).with_context(|| format!("load {name}"))
}

/// Each word of an address, and its port, by their offsets in the context.
fn fields(of: SocketAddr) -> Vec<(i16, i32)> {
    let (offset, octets) = match of.ip() {
        IpAddr::V4(v4) => (USER_IP4, v4.octets().to_vec()),
        IpAddr::V6(v6) => (USER_IP6, v6.octets().to_vec()),
    };
    let words = octets
        .chunks(4)
        .map(|word| i32::from_ne_bytes(word.try_into().unwrap_or_default()));
    let mut fields: Vec<_> = (offset..).step_by(4).zip(words).collect();
    fields.push((USER_PORT, i32::from(of.port().to_be())));
    fields
}

/// For each rule: `if (destination == from) { destination = to; return 1; }`, or `return 0;`. At the end: `return 1;`
fn translation(rules: &[Rule]) -> Vec<bpf_insn> {
    let exit = |result: i32| [insn(0xb7, 0, 0, 0, result), insn(0x95, 0, 0, 0, 0)];
    let mut code = Vec::new();
    for (from, to) in rules {
        let mut then = Vec::new();
        for (offset, value) in to.map(fields).unwrap_or_default() {
            // w3 = value; *(u32 *)(r1 + offset) = r3;
            then.push(insn(0xb4, 3, 0, 0, value));
            then.push(insn(0x63, CONTEXT, 3, offset, 0));
        }
        then.extend(exit(i32::from(to.is_some())));
        let from = fields(*from);
        for (field, (offset, value)) in from.iter().enumerate() {
            // What follows of this rule: a load and a jump for each field, and what it does.
            let rest = 2 * (from.len() - field - 1) + then.len();
            // r2 = *(u32 *)(r1 + offset); if w2 != value goto the next rule;
            code.push(insn(0x61, 2, CONTEXT, *offset, 0));
            code.push(insn(0x56, 2, 0, rest as i16, *value));
        }
        code.append(&mut then);
    }
    code.extend(exit(1));
    code
}

fn insn(code: u8, destination: u8, source: u8, off: i16, imm: i32) -> bpf_insn {
    bpf_insn {
        code,
        _bitfield_align_1: [],
        _bitfield_1: bpf_insn::new_bitfield_1(destination, source),
        off,
        imm,
    }
}

/// Fields drop in order: processes before what they run in.
struct Fixture {
    client: Actor,
    outside: Actor,
    sidecar: Actor,
    agent: Agent,
    _balancer: Balancer,
    pod: PodNet,
    lab: Lab,
}

impl Fixture {
    fn new() -> Result<Self> {
        let mut lab = Lab::new()?;
        for vip in VIP {
            lab.add_outside(vip)?;
        }
        let (pod, places) = below_a_node(&mut lab)?;
        let balancer = Balancer::attach(&lab.places().cgroup)?;
        let agent = Agent::start(&places)?;
        lab.enroll("app", &pod, &[])?;
        Ok(Self {
            client: pod.actor()?,
            outside: lab.outside().actor()?,
            sidecar: sidecar::start(&pod, &[APP_PORT])?,
            agent,
            _balancer: balancer,
            pod,
            lab,
        })
    }

    fn dial(&self, dial: Dial) -> Result<Connected> {
        let to = dial.destination;
        let result = self.client.dial(dial)?;
        result.map_err(|errno| anyhow!("to {to}: errno {errno}"))
    }
}

/// A pod, and an agent's places, where the pods' cgroup is below that of the lab.
fn below_a_node(lab: &mut Lab) -> Result<(PodNet, Places)> {
    let mut pod = lab.pod("app", 2)?;
    let mut places = lab.places().clone();
    let own = pod.cgroup.strip_prefix(&places.cgroup)?.to_owned();
    places.cgroup.push("pods");
    pod.cgroup = places.cgroup.join(own);
    fs::create_dir_all(&pod.cgroup)?;
    Ok((pod, places))
}

kernel_test!(a_balancer_above_is_followed);
/// Of the application the sidecar gets what it dialed; what the proxy dials is what it was translated to.
fn a_balancer_above_is_followed() -> Result<()> {
    let fixture = Fixture::new()?;
    for family in [0, 1] {
        let vip = at(VIP[family], 80);
        let none = at(NO_ENDPOINTS[family], 80);
        let own = at(POD[family], APP_PORT);
        for (user, dialed) in [(&APP, vip), (&ROOT, vip), (&APP, none)] {
            let result = fixture.client.dial(Dial::new(user, dialed))?;
            check(&result, Arrives::Sidecar(15001), POD[family], dialed)?;
        }
        // Several, so that a row that remains of one would be seen by the next.
        for _ in 0..5 {
            let connected = fixture.dial(Dial::new(&PROXY, vip))?;
            ensure!(connected.accepted_by == 15006, "{connected:?}");
            ensure!(original(&connected.server, own) == Ok(own), "{connected:?}");
            ensure!(connected.client.peer == vip, "{connected:?}");
        }
        let refused = fixture.client.dial(Dial::new(&PROXY, none))?;
        ensure!(refused == Err(EPERM), "{refused:?}");
        // Excluded as from the pod's own address: the sidecar calls the application.
        let sidecar_itself = ["127.0.0.6", "::6"][family];
        let mut dial = Dial::new(&PROXY, vip);
        dial.source = Some(SocketAddr::new(crate::fixture::ip(sidecar_itself), 0));
        let connected = fixture.dial(dial)?;
        ensure!(connected.accepted_by == APP_PORT, "{connected:?}");
        // The application's own calls within the pod stay what they are.
        let connected = fixture.dial(Dial::new(&APP, own))?;
        ensure!(connected.accepted_by == APP_PORT, "{connected:?}");
    }
    let rows = fixture.agent.places.map("HANDSHAKES")?;
    ensure!(rows.is_empty(), "{rows:?}");
    Ok(())
}

kernel_test!(the_rules_see_what_a_balancer_has_translated);
/// As with iptables, which does not see the address and port that the proxy has dialed.
fn the_rules_see_what_a_balancer_has_translated() -> Result<()> {
    let fixture = Fixture::new()?;
    // Over lo it is not the proxy, whose user comes first.
    let group = Identity {
        gid: PROXY.gid,
        ..APP
    };
    // Excluded ports, and where the proxy's and the application's connections to the service arrive.
    let cases = [
        ("80", 15006, APP_PORT),
        ("8080", APP_PORT, 15001),
        ("80,8080", APP_PORT, APP_PORT),
    ];
    for (ports, of_proxy, of_app) in cases {
        let annotations = [("traffic.sidecar.istio.io/excludeOutboundPorts", ports)];
        fixture.lab.enroll("app", &fixture.pod, &annotations)?;
        for (family, vip) in VIP.into_iter().enumerate() {
            let service = at(vip, 80);
            for (user, dialed, by) in [
                (&PROXY, service, of_proxy),
                (&PROXY, at(POD[family], APP_PORT), of_proxy),
                (&APP, service, of_app),
                (&group, service, APP_PORT),
            ] {
                let connected = fixture.dial(Dial::new(user, dialed))?;
                let case = format!("{ports} excluded, {user:?} to {dialed}");
                ensure!(connected.accepted_by == by, "{case}: {connected:?}");
            }
        }
    }
    // As by ports that no list of the kernel's own holds.
    let ranged = manifest("app", &fixture.pod, &[]).with_istio_init(&["-o", "8000:9000"], &[]);
    fixture.lab.enroll_manifest("app", &ranged)?;
    for (family, vip) in VIP.into_iter().enumerate() {
        for dialed in [at(vip, 80), at(POD[family], APP_PORT)] {
            let connected = fixture.dial(Dial::new(&PROXY, dialed))?;
            ensure!(
                connected.accepted_by == APP_PORT,
                "to {dialed}: {connected:?}"
            );
        }
    }
    Ok(())
}

kernel_test!(a_balancer_above_gets_the_queries_of_the_sidecar);
/// The application's go to the sidecar, and both get their answers from the service that they asked.
fn a_balancer_above_gets_the_queries_of_the_sidecar() -> Result<()> {
    let fixture = Fixture::new()?;
    let capturing = manifest("app", &fixture.pod, &[]);
    let capturing = capturing.with_variable("ISTIO_META_DNS_CAPTURE", "true");
    fixture.lab.enroll_manifest("app", &capturing)?;
    for (family, loopback) in ["127.0.0.1", "::1"].into_iter().enumerate() {
        let captured = at(loopback, CAPTURE);
        let resolver = at(RESOLVER[family], RESOLVER_PORT);
        fixture.sidecar.answer_udp(&PROXY, captured)?;
        fixture.outside.answer_udp(&ROOT, resolver)?;
        let vip = at(VIP[family], DNS);
        for (sender, by) in [(&APP, captured), (&PROXY, resolver)] {
            for connected in [false, true] {
                let answer = fixture.client.send_udp(SendUdp {
                    sender: sender.clone(),
                    destination: vip,
                    source: None,
                    connected,
                })?;
                let case = format!("uid {} to {vip}, connected: {connected}", sender.uid);
                let answer = answer.map_err(|errno| anyhow!("{case}: errno {errno}"))?;
                let names = (answer.answered_by, answer.came_from, answer.peer);
                let wanted = (by, vip, connected.then_some(vip));
                ensure!(names == wanted, "{case}: {answer:?}");
            }
        }
    }
    Ok(())
}

kernel_test!(a_balancer_above_is_named);
fn a_balancer_above_is_named() -> Result<()> {
    let fixture = Fixture::new()?;
    let status = eventually(Duration::from_secs(15), || {
        let status = fixture.agent.places.json(&["status", "-o", "json"])?;
        for name in ["tst_connect4", "tst_connect6", "tst_peer4", "tst_peer6"] {
            let mut notes = status["notes"].as_array().into_iter().flatten();
            let is_named = notes.any(|note| {
                let note = note.as_str().unwrap_or_default();
                note.contains(name) && note.contains("above the pods' cgroup")
            });
            ensure!(is_named, "{status}");
        }
        Ok(status)
    })?;
    ensure!(status["problems"] == serde_json::json!([]), "{status}");
    Ok(())
}

kernel_test!(a_balancer_that_allows_no_other_is_named);
/// As Cilium attached before 1.14: neither sidetrack's programs beside it nor it beside them.
fn a_balancer_that_allows_no_other_is_named() -> Result<()> {
    let mut lab = Lab::new()?;
    let (pod, places) = below_a_node(&mut lab)?;
    let node = fs::File::open(&lab.places().cgroup)?;
    let hook = bpf_attach_type::BPF_CGROUP_INET4_CONNECT;
    // The first agent comes before it.
    let agent = Agent::start(&places)?;
    lab.enroll("app", &pod, &[])?;
    let program = load("tst_alone4", hook, &translation(&[]))?;
    sys::attach_alone(program.as_fd(), node.as_fd(), hook)?;
    let named = ["program tst_alone4 ", "BPF_F_ALLOW_MULTI"];
    eventually(Duration::from_secs(15), || {
        let problems = places.problems()?;
        let has_all = named.iter().all(|word| problems.contains(word));
        ensure!(
            has_all && problems.contains("none of these pods"),
            "{problems}"
        );
        Ok(())
    })?;
    drop(agent);
    let cleanup = places.output(&["cleanup"])?;
    ensure!(cleanup.status.success(), "{cleanup:?}");
    // The next one comes after it.
    let refused = Agent::start(&places).err().context("it started")?;
    let cgroup = places.cgroup.to_string_lossy();
    let doctor = places.output(&["doctor", "--cgroup", &cgroup])?;
    ensure!(!doctor.status.success(), "{doctor:?}");
    for said in [format!("{refused:#}"), format!("{doctor:?}")] {
        ensure!(named.iter().all(|word| said.contains(word)), "{said}");
    }
    Ok(())
}
