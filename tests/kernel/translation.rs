//! A socket load balancer above the pods' cgroup: its programs run after sidetrack's.

use std::{
    fs,
    net::{IpAddr, SocketAddr},
    os::fd::{AsFd as _, OwnedFd},
    time::Duration,
};

use anyhow::{Context as _, Result, anyhow, ensure};
use aya_obj::generated::{bpf_attach_type, bpf_insn, bpf_prog_type};
use lab::{
    actor::Actor,
    agent::Agent,
    network::{Lab, PodNet},
    product::sys,
    protocol::{APP, Connected, Dial, PROXY, ROOT},
    sidecar,
    wait::eventually,
};

use crate::fixture::{Arrives, POD, VIP, at, check, original};

/// Translates a service address to the pod's own, keeping the port.
struct Balancer {
    _links: Vec<OwnedFd>,
}

/// Offsets in `struct bpf_sock_addr`, and the register that holds it.
const USER_IP4: i16 = 4;
const USER_IP6: i16 = 8;
const CONTEXT: u8 = 1;

impl Balancer {
    fn attach(cgroup: &std::path::Path) -> Result<Self> {
        let cgroup = fs::File::open(cgroup)?;
        let hooks = [
            ("tst_balance4", bpf_attach_type::BPF_CGROUP_INET4_CONNECT),
            ("tst_balance6", bpf_attach_type::BPF_CGROUP_INET6_CONNECT),
        ];
        let attach = |((name, hook), family): ((&str, bpf_attach_type), usize)| -> Result<OwnedFd> {
            let code = translation(at(VIP[family], 0).ip(), at(POD[family], 0).ip());
            let kind = bpf_prog_type::BPF_PROG_TYPE_CGROUP_SOCK_ADDR;
            let program = sys::program_load(kind, Some(hook), name, &code);
            let program = program.with_context(|| format!("load {name}"))?;
            Ok(sys::link_create(program.as_fd(), cgroup.as_fd(), hook)?)
        };
        let links = hooks.into_iter().zip(0..).map(attach);
        Ok(Self {
            _links: links.collect::<Result<_>>()?,
        })
    }
}

/// `if (address == from) address = to; return 1;`
fn translation(from: IpAddr, to: IpAddr) -> Vec<bpf_insn> {
    let words = |ip: IpAddr| -> Vec<i32> {
        let octets = match ip {
            IpAddr::V4(v4) => v4.octets().to_vec(),
            IpAddr::V6(v6) => v6.octets().to_vec(),
        };
        let words = octets
            .chunks(4)
            .map(|word| word.try_into().unwrap_or_default());
        words.map(i32::from_ne_bytes).collect()
    };
    let (from, to) = (words(from), words(to));
    let offset = if from.len() == 1 { USER_IP4 } else { USER_IP6 };
    let at_word = |word: usize| offset + 4 * word as i16;
    let mut code = Vec::new();
    for (word, value) in from.iter().enumerate() {
        // What follows for each word: a load and a jump; then two instructions for each word of `to`.
        let rest = 2 * (from.len() - word - 1) + 2 * to.len();
        // r2 = *(u32 *)(r1 + offset); if w2 != value goto end;
        code.push(insn(0x61, 2, CONTEXT, at_word(word), 0));
        code.push(insn(0x56, 2, 0, rest as i16, *value));
    }
    for (word, value) in to.iter().enumerate() {
        // w3 = value; *(u32 *)(r1 + offset) = r3;
        code.push(insn(0xb4, 3, 0, 0, *value));
        code.push(insn(0x63, CONTEXT, 3, at_word(word), 0));
    }
    // r0 = 1; exit;
    code.push(insn(0xb7, 0, 0, 0, 1));
    code.push(insn(0x95, 0, 0, 0, 0));
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
    _sidecar: Actor,
    agent: Agent,
    _balancer: Balancer,
    _pod: PodNet,
    _lab: Lab,
}

impl Fixture {
    fn new() -> Result<Self> {
        let mut lab = Lab::new()?;
        for vip in VIP {
            lab.add_outside(vip)?;
        }
        let mut pod = lab.pod("app", 2)?;
        let node = lab.places().cgroup.clone();
        let mut places = lab.places().clone();
        places.cgroup = node.join("pods");
        pod.cgroup = places.cgroup.join("app");
        fs::create_dir_all(&pod.cgroup)?;
        let balancer = Balancer::attach(&node)?;
        let agent = Agent::start(&places)?;
        lab.enroll("app", &pod, &[])?;
        Ok(Self {
            client: pod.actor()?,
            _sidecar: sidecar::start(&pod, &[80])?,
            agent,
            _balancer: balancer,
            _pod: pod,
            _lab: lab,
        })
    }

    fn dial(&self, dial: Dial) -> Result<Connected> {
        let to = dial.destination;
        let result = self.client.dial(dial)?;
        result.map_err(|errno| anyhow!("to {to}: errno {errno}"))
    }
}

kernel_test!(a_balancer_above_is_followed);
/// Of the application the sidecar gets what it dialed; what the proxy dials is what it was translated to.
fn a_balancer_above_is_followed() -> Result<()> {
    let fixture = Fixture::new()?;
    for family in [0, 1] {
        let vip = at(VIP[family], 80);
        let own = at(POD[family], 80);
        for user in [&APP, &ROOT] {
            let result = fixture.client.dial(Dial::new(user, vip))?;
            check(&result, Arrives::Sidecar(15001), POD[family], vip)?;
        }
        // Several, so that a row that remains of one would be seen by the next.
        for _ in 0..5 {
            let connected = fixture.dial(Dial::new(&PROXY, vip))?;
            ensure!(connected.accepted_by == 15006, "{connected:?}");
            ensure!(original(&connected.server, own) == Ok(own), "{connected:?}");
        }
        // Excluded as from the pod's own address: the sidecar calls the application.
        let sidecar_itself = ["127.0.0.6", "::6"][family];
        let mut dial = Dial::new(&PROXY, vip);
        dial.source = Some(SocketAddr::new(crate::fixture::ip(sidecar_itself), 0));
        let connected = fixture.dial(dial)?;
        ensure!(connected.accepted_by == 80, "{connected:?}");
        // The application's own calls within the pod stay what they are.
        let connected = fixture.dial(Dial::new(&APP, own))?;
        ensure!(connected.accepted_by == 80, "{connected:?}");
    }
    let rows = fixture.agent.places.map("HANDSHAKES")?;
    ensure!(rows.is_empty(), "{rows:?}");
    Ok(())
}

kernel_test!(a_balancer_above_is_named);
fn a_balancer_above_is_named() -> Result<()> {
    let fixture = Fixture::new()?;
    let status = eventually(Duration::from_secs(15), || {
        let status = fixture.agent.places.json(&["status", "-o", "json"])?;
        for name in ["tst_balance4", "tst_balance6"] {
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
