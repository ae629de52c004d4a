//! A netfilter of the size the test needs: reads a nat table from the input of iptables-restore
//! and walks the first packet of a connection through it.
//!
//! It has no code in common with the writer of the rules, so that both cannot have the same mistake.
//! Unknown syntax is an error, never a rule that does not match.

mod text;

use std::{collections::BTreeMap, net::IpAddr, ops::RangeInclusive};

/// A rule set, as one of iptables and ip6tables holds it.
#[derive(Debug)]
pub struct Nat {
    chains: BTreeMap<String, Chain>,
}

#[derive(Debug)]
struct Chain {
    /// Built into the kernel, with policy ACCEPT; RETURN from it is that policy.
    builtin: bool,
    rules: Vec<Rule>,
}

#[derive(Debug)]
struct Rule {
    line: String,
    matches: Vec<Match>,
    target: Target,
}

#[derive(Debug)]
struct Match {
    negated: bool,
    field: Field,
}

#[derive(Debug)]
enum Field {
    Udp(bool),
    DestinationPort(Vec<RangeInclusive<u16>>),
    Source(Net),
    Destination(Net),
    Input(Device),
    Output(Device),
    Uid(RangeInclusive<u32>),
    Gid(u32),
    Mark { value: u32, mask: u32 },
}

/// An interface, or all whose names begin alike.
#[derive(Debug)]
struct Device {
    bytes: Vec<u8>,
    /// Bytes that are compared: the pattern's own, or those of a name and the NUL after it
    /// (`ifname_compare` in net/ipv4/netfilter/ip_tables.c).
    compared: usize,
}

impl Device {
    fn is(&self, name: &str) -> bool {
        let padded = |bytes: &[u8], at: usize| bytes.get(at).copied().unwrap_or_default();
        (0..self.compared).all(|at| padded(&self.bytes, at) == padded(name.as_bytes(), at))
    }
}

#[derive(Debug)]
enum Target {
    Accept,
    Return,
    Redirect(u16),
    Jump(String),
}

/// An address and its leading bits that count.
#[derive(Debug)]
struct Net {
    addr: IpAddr,
    prefix: u32,
}

impl Net {
    fn holds(&self, addr: IpAddr) -> bool {
        let (width, ours, theirs) = match (self.addr, addr) {
            (IpAddr::V4(ours), IpAddr::V4(theirs)) => {
                (32, ours.to_bits().into(), theirs.to_bits().into())
            }
            (IpAddr::V6(ours), IpAddr::V6(theirs)) => (128, ours.to_bits(), theirs.to_bits()),
            _ => return false,
        };
        // A shift by the whole width of a u128 is not a number.
        let differing: u128 = ours ^ theirs;
        differing.checked_shr(width - self.prefix).unwrap_or(0) == 0
    }
}

/// Where a packet meets the table.
#[derive(Clone, Debug)]
pub enum Hook {
    /// A packet from elsewhere.
    Prerouting {
        /// By this interface.
        input: String,
    },
    /// A socket of the namespace sends it.
    Output {
        /// By this interface.
        output: String,
        /// uid and gid of the socket's creator; none for a socket of the kernel's.
        owner: Option<(u32, u32)>,
    },
}

/// The first packet of a TCP connection or of an exchange by UDP.
#[derive(Clone, Debug)]
pub struct Packet {
    /// Where it is.
    pub hook: Hook,
    /// Source address.
    pub source: IpAddr,
    /// Destination address.
    pub destination: IpAddr,
    /// Destination port.
    pub port: u16,
    /// Whether it is UDP.
    pub udp: bool,
    /// Its mark, which is its socket's.
    pub mark: u32,
}

/// What became of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It continues unchanged.
    Accepted,
    /// It goes to this port of the namespace's own.
    Redirected(u16),
}

/// What became of a packet, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// What became of it.
    pub fate: Fate,
    /// The rule that ended the walk, after the jumps that led to it; of an accepted packet ACCEPT or the
    /// last RETURN it met. Empty if it fell through.
    pub by: Vec<String>,
}

impl Nat {
    /// Walks a packet through the chain of its hook.
    pub fn walk(&self, packet: &Packet) -> Result<Outcome, String> {
        let mut walk = Walk {
            nat: self,
            packet,
            jumps: Vec::new(),
            returned: Vec::new(),
        };
        let hook = match packet.hook {
            Hook::Prerouting { .. } => "PREROUTING",
            Hook::Output { .. } => "OUTPUT",
        };
        let end = walk.chain(hook)?;
        Ok(match end {
            Some(Fate::Redirected(port)) => Outcome {
                fate: Fate::Redirected(port),
                by: walk.jumps,
            },
            Some(Fate::Accepted) | None => Outcome {
                fate: Fate::Accepted,
                by: walk.returned,
            },
        })
    }
}

struct Walk<'a> {
    nat: &'a Nat,
    packet: &'a Packet,
    /// The rules the packet is inside of.
    jumps: Vec<String>,
    /// The same at the last RETURN.
    returned: Vec<String>,
}

impl Walk<'_> {
    /// What a rule of this chain or the chains below makes of it at last.
    fn chain(&mut self, name: &str) -> Result<Option<Fate>, String> {
        let chain = &self.nat.chains[name];
        if self.jumps.len() > self.nat.chains.len() {
            return Err(format!("the jumps into {name} never end"));
        }
        for rule in &chain.rules {
            if !rule.holds(self.packet)? {
                continue;
            }
            self.jumps.push(rule.line.clone());
            match &rule.target {
                Target::Redirect(port) => return Ok(Some(Fate::Redirected(*port))),
                Target::Accept => {
                    self.returned.clone_from(&self.jumps);
                    return Ok(Some(Fate::Accepted));
                }
                Target::Return => {
                    self.returned.clone_from(&self.jumps);
                    self.jumps.pop();
                    return Ok(None);
                }
                Target::Jump(chain) => {
                    if let Some(end) = self.chain(chain)? {
                        return Ok(Some(end));
                    }
                }
            }
            self.jumps.pop();
        }
        Ok(None)
    }
}

impl Rule {
    fn holds(&self, packet: &Packet) -> Result<bool, String> {
        for wanted in &self.matches {
            let holds = wanted
                .field
                .holds(packet)
                .ok_or_else(|| format!("{:?} cannot meet {}", packet.hook, self.line))?;
            if holds == wanted.negated {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

impl Field {
    /// `None` where the kernel would not have let the rule in: interfaces and owners are known at
    /// one of the hooks only.
    fn holds(&self, packet: &Packet) -> Option<bool> {
        Some(match (self, &packet.hook) {
            (Self::Udp(udp), _) => *udp == packet.udp,
            (Self::DestinationPort(ports), _) => {
                ports.iter().any(|ports| ports.contains(&packet.port))
            }
            (Self::Mark { value, mask }, _) => packet.mark & mask == *value,
            (Self::Source(net), _) => net.holds(packet.source),
            (Self::Destination(net), _) => net.holds(packet.destination),
            (Self::Input(name), Hook::Prerouting { input }) => name.is(input),
            (Self::Output(name), Hook::Output { output, .. }) => name.is(output),
            (Self::Uid(uids), Hook::Output { owner, .. }) => {
                owner.is_some_and(|owner| uids.contains(&owner.0))
            }
            (Self::Gid(gid), Hook::Output { owner, .. }) => {
                owner.is_some_and(|owner| owner.1 == *gid)
            }
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests;
