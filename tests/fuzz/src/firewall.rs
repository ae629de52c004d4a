//! Reads what `sidetrack rules --format iptables` prints, as strictly as it must be for
//! iptables-restore, and judges packets by it: a second opinion that shares no code with the
//! decision.

use std::{collections::BTreeMap, net::IpAddr};

use ipnet::IpNet;
use sidetrack_common::addr::Family;

/// The nat table.
pub struct Table {
    /// Chains of its own, as declared.
    pub chains: Vec<String>,
    lines: BTreeMap<String, Vec<Line>>,
}

/// The first packet of a connection.
#[derive(Debug)]
pub struct Packet<'a> {
    pub in_device: &'a str,
    pub out_device: &'a str,
    pub source: IpAddr,
    pub destination: IpAddr,
    pub port: u16,
    pub uid: u32,
    pub gid: u32,
}

/// What the table does with a packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outcome<'a> {
    /// Where it is redirected to.
    pub port: Option<u16>,
    /// The line that settled it, `None` if it passed them all.
    pub by: Option<&'a str>,
}

struct Line {
    command: String,
    conditions: Vec<Condition>,
    target: Target,
}

struct Condition {
    negated: bool,
    test: Test,
}

enum Test {
    InDevice(String),
    OutDevice(String),
    Source(IpNet),
    Destination(IpNet),
    Port(u16),
    Uid(u32),
    Gid(u32),
}

#[derive(PartialEq)]
enum Target {
    Return,
    Redirect(u16),
    Chain(String),
}

enum Step<'a> {
    Settled(Outcome<'a>),
    Returned(Outcome<'a>),
    Passed,
}

impl Table {
    /// Reads it; panics at anything that is not as it must be.
    pub fn read(text: &str, family: Family) -> Self {
        let mut lines = text.split_terminator('\n');
        assert_eq!(lines.next(), Some("*nat"), "{text}");
        assert_eq!(lines.next_back(), Some("COMMIT"), "{text}");
        let mut table = Self {
            chains: Vec::new(),
            lines: BTreeMap::new(),
        };
        for line in lines {
            let words: Vec<&str> = line.split(' ').collect();
            match words.as_slice() {
                [chain, "ACCEPT", "[0:0]"] => table.declare(chain, line),
                [chain, "-", "[0:0]"] => {
                    table.declare(chain, line);
                    table.chains.push(chain[1..].to_owned());
                }
                ["-A", chain, rest @ ..] => {
                    let parsed = Line::read(line, rest, family);
                    if let Target::Chain(target) = &parsed.target {
                        assert!(table.chains.contains(target), "{line:?}");
                    }
                    let chain = table.lines.get_mut(*chain);
                    chain.unwrap_or_else(|| panic!("{line:?}")).push(parsed);
                }
                _ => panic!("{line:?}"),
            }
        }
        table
    }

    fn declare(&mut self, name: &str, line: &str) {
        let name = name.strip_prefix(':').unwrap_or_else(|| panic!("{line:?}"));
        let before = self.lines.insert(name.to_owned(), Vec::new());
        assert!(before.is_none(), "{line:?} is there twice");
    }

    /// Sends a packet through a built-in chain.
    pub fn judge(&self, chain: &str, packet: &Packet<'_>) -> Outcome<'_> {
        match self.walk(chain, packet) {
            Step::Settled(outcome) | Step::Returned(outcome) => outcome,
            Step::Passed => Outcome::default(),
        }
    }

    fn walk(&self, chain: &str, packet: &Packet<'_>) -> Step<'_> {
        // What came back from a chain is remembered: if nothing else settles it, that line did.
        let mut returned = None;
        for line in self.lines.get(chain).into_iter().flatten() {
            if !line.conditions.iter().all(|it| it.holds(packet)) {
                continue;
            }
            let by = Some(line.command.as_str());
            match &line.target {
                Target::Return => return Step::Returned(Outcome { port: None, by }),
                Target::Redirect(port) => {
                    let port = Some(*port);
                    return Step::Settled(Outcome { port, by });
                }
                Target::Chain(next) => match self.walk(next, packet) {
                    Step::Settled(outcome) => {
                        // Chains whose only line redirects are called by the line that decides.
                        let by = if next.ends_with("REDIRECT") {
                            by
                        } else {
                            outcome.by
                        };
                        return Step::Settled(Outcome { by, ..outcome });
                    }
                    Step::Returned(outcome) => returned = Some(outcome),
                    Step::Passed => {}
                },
            }
        }
        returned.map_or(Step::Passed, Step::Returned)
    }
}

impl Line {
    fn read(command: &str, words: &[&str], family: Family) -> Self {
        let refused = |why: &str| -> ! { panic!("{command:?}: {why}") };
        // iptables-restore takes these for quoting.
        if command.contains(['"', '\'', '\\']) || command.contains(char::is_control) {
            refused("it would not be read as it is written");
        }
        let mut conditions = Vec::new();
        let mut target = None;
        let mut negated = false;
        let mut words = words.iter().copied();
        while let Some(flag) = words.next() {
            if flag == "!" {
                assert!(!negated, "{command:?}");
                negated = true;
                continue;
            }
            let Some(value) = words.next().filter(|value| !value.is_empty()) else {
                refused("a value is missing");
            };
            let number = || value.parse().unwrap_or_else(|_| refused("not a number"));
            let test = match flag {
                "-i" => Some(Test::InDevice(device(command, value))),
                "-o" => Some(Test::OutDevice(device(command, value))),
                "-s" => Some(Test::Source(range(command, value, family))),
                "-d" => Some(Test::Destination(range(command, value, family))),
                "--dport" => Some(Test::Port(
                    value.parse().unwrap_or_else(|_| refused("not a port")),
                )),
                "--uid-owner" => Some(Test::Uid(number())),
                "--gid-owner" => Some(Test::Gid(number())),
                "-p" | "-m" => {
                    assert!(matches!(value, "tcp" | "owner"), "{command:?}");
                    None
                }
                "-j" if value == "REDIRECT" => {
                    assert_eq!(words.next(), Some("--to-ports"), "{command:?}");
                    let port = words.next().and_then(|port| port.parse().ok());
                    target = Some(Target::Redirect(
                        port.unwrap_or_else(|| refused("not a port")),
                    ));
                    None
                }
                "-j" if value == "RETURN" => {
                    target = Some(Target::Return);
                    None
                }
                "-j" => {
                    target = Some(Target::Chain(value.to_owned()));
                    None
                }
                _ => refused("an unknown flag"),
            };
            match test {
                Some(test) => conditions.push(Condition { negated, test }),
                None => assert!(!negated, "{command:?}"),
            }
            negated = false;
        }
        Self {
            command: command.to_owned(),
            conditions,
            target: target.unwrap_or_else(|| refused("no target")),
        }
    }
}

fn device(command: &str, name: &str) -> String {
    // At the end of a name + stands for any rest.
    assert!(
        name.len() < 16 && name != "!" && !name.ends_with('+'),
        "{command:?}"
    );
    name.to_owned()
}

fn range(command: &str, text: &str, family: Family) -> IpNet {
    let net: IpNet = text.parse().unwrap_or_else(|_| panic!("{command:?}"));
    assert_eq!(net.addr().is_ipv6(), family == Family::V6, "{command:?}");
    assert_eq!(net, net.trunc(), "{command:?}");
    net
}

impl Condition {
    fn holds(&self, packet: &Packet<'_>) -> bool {
        let matches = match &self.test {
            Test::InDevice(name) => name == packet.in_device,
            Test::OutDevice(name) => name == packet.out_device,
            Test::Source(range) => range.contains(&packet.source),
            Test::Destination(range) => range.contains(&packet.destination),
            Test::Port(port) => *port == packet.port,
            Test::Uid(id) => *id == packet.uid,
            Test::Gid(id) => *id == packet.gid,
        };
        matches != self.negated
    }
}
