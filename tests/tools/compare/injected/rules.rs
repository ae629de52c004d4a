//! Rules as the kernel gives them back, and what they do with a packet.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
    io::Write as _,
    net::IpAddr,
    process::{Command, Stdio},
};

use anyhow::{Context as _, Result, anyhow, bail};
use sidetrack_common::addr::Family;

use crate::rule_text::netfilter::{Fate, Hook, Nat, Packet};

const BUILTIN: [&str; 5] = ["PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING"];

/// Chains that packets reach, of all tables together, without comments, logging and what drops invalid packets: none of
/// that decides where a connection goes.
#[derive(Debug, PartialEq, Eq)]
pub struct Chains(BTreeMap<String, Vec<String>>);

impl Chains {
    /// Lines of `iptables -S`.
    pub fn parse(text: &str) -> Self {
        let mut chains: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for line in text.lines().filter(|line| line.starts_with("-A ")) {
            if line.contains(" -j LOG") || line.contains("INVALID") {
                continue;
            }
            let chain = line.split(' ').nth(1).unwrap_or_default();
            let lines = chains.entry(chain.to_owned()).or_default();
            lines.push(without_comment(line));
        }
        let mut reached = BTreeSet::new();
        let mut todo: Vec<String> = BUILTIN.map(str::to_owned).into();
        while let Some(chain) = todo.pop() {
            if let Some(lines) = chains.get(&chain)
                && reached.insert(chain)
            {
                todo.extend(lines.iter().filter_map(|line| target(line)));
            }
        }
        chains.retain(|chain, _| reached.contains(chain));
        Self(chains)
    }

    /// Loads the input of iptables-restore into a network namespace of its own, and reads what is there then.
    pub fn load(text: &str, family: Family) -> Result<Self> {
        let tool = match family {
            Family::V4 => "iptables",
            Family::V6 => "ip6tables",
        };
        let script = format!("{tool}-restore && {tool}-save");
        let mut child = Command::new("unshare")
            .args(["--net", "sh", "-c", &script])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .context("run unshare")?;
        let mut input = child.stdin.take().context("its input")?;
        input.write_all(text.as_bytes())?;
        drop(input);
        let output = child.wait_with_output()?;
        if !output.status.success() {
            let error = String::from_utf8_lossy(&output.stderr);
            bail!("{tool}-restore: {}\n{text}", error.trim());
        }
        Ok(Self::parse(&String::from_utf8_lossy(&output.stdout)))
    }

    /// Lines that only one of both has, and chains with another order.
    pub fn differences(&self, found: &Self) -> Vec<String> {
        let names: BTreeSet<&String> = self.0.keys().chain(found.0.keys()).collect();
        let lines = |chains: &Self, name| chains.0.get(name).cloned().unwrap_or_default();
        let mut differences = Vec::new();
        for name in names {
            let (mesh, ours) = (lines(self, name), lines(found, name));
            let only = |one: &[String], other: &[String], whose: &str| -> Vec<String> {
                let missing = one.iter().filter(|line| !other.contains(line));
                missing
                    .map(|line| format!("\n    {whose} only: {line}"))
                    .collect()
            };
            let before = differences.len();
            differences.extend(only(&mesh, &ours, "mesh"));
            differences.extend(only(&ours, &mesh, "sidetrack"));
            if differences.len() == before && mesh != ours {
                differences.push(format!("\n    another order or number of lines in {name}"));
            }
        }
        differences
    }

    /// Table nat of these.
    pub fn nat(&self) -> Result<Nat> {
        let mut text = "*nat\n".to_owned();
        let builtin = ["PREROUTING", "INPUT", "OUTPUT", "POSTROUTING"];
        for chain in builtin {
            writeln!(text, ":{chain} ACCEPT [0:0]")?;
        }
        for chain in self
            .0
            .keys()
            .filter(|name| !builtin.contains(&name.as_str()))
        {
            writeln!(text, ":{chain} - [0:0]")?;
        }
        let of_others = [" -j CT ", "MARK", "TPROXY", "DIVERT", " -m conntrack "];
        let lines = self.0.values().flatten();
        for line in lines.filter(|line| !of_others.iter().any(|part| line.contains(part))) {
            writeln!(text, "{line}")?;
        }
        text.push_str("COMMIT\n");
        Nat::parse(&text).map_err(|problem| anyhow!("the mesh's rules: {problem}"))
    }
}

/// A line without its comment, which is a word or in quotes.
fn without_comment(line: &str) -> String {
    const OPTION: &str = " -m comment --comment ";
    let Some((before, after)) = line.split_once(OPTION) else {
        return line.to_owned();
    };
    let end = match after.strip_prefix('"') {
        Some(quoted) => quoted.find('"').map(|at| at + 2),
        None => after.find(' '),
    };
    format!("{before}{}", &after[end.unwrap_or(after.len())..])
}

/// The chain or target that a line leads to.
fn target(line: &str) -> Option<String> {
    let mut words = line
        .split(' ')
        .skip_while(|word| !["-j", "-g"].contains(word));
    words.nth(1).map(str::to_owned)
}

fn fate(
    nat: &Nat,
    hook: Hook,
    (source, destination): (IpAddr, IpAddr),
    port: u16,
) -> Result<Option<u16>> {
    let packet = Packet {
        hook,
        source,
        destination,
        port,
        udp: false,
        mark: 0,
    };
    match nat.walk(&packet).map_err(|problem| anyhow!(problem))?.fate {
        Fate::Redirected(port) => Ok(Some(port)),
        Fate::Accepted => Ok(None),
    }
}

/// The port that a connection from the pod is redirected to.
pub fn outbound(
    nat: &Nat,
    ends: (IpAddr, IpAddr),
    port: u16,
    owner: (u32, u32),
) -> Result<Option<u16>> {
    let output = "eth0".to_owned();
    let owner = Some(owner);
    fate(nat, Hook::Output { output, owner }, ends, port)
}

/// The port that a connection from elsewhere is redirected to.
pub fn inbound(nat: &Nat, ends: (IpAddr, IpAddr), port: u16) -> Result<Option<u16>> {
    let input = "eth0".to_owned();
    fate(nat, Hook::Prerouting { input }, ends, port)
}
