//! The input of iptables-restore, as far as it is understood.

use std::{collections::BTreeMap, net::IpAddr, ops::RangeInclusive, str::FromStr};

use super::{Chain, Device, Field, Match, Nat, Net, Rule, Target};

const BUILTIN: [&str; 4] = ["PREROUTING", "INPUT", "OUTPUT", "POSTROUTING"];

impl Nat {
    /// Reads one nat table, all of it. Tables raw and mangle may come first, which decide nothing about a first packet.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut chains = BTreeMap::new();
        let has_others = ["*raw", "*mangle"].iter().any(|it| text.starts_with(it));
        let is_before = |line: &&str| has_others && *line != "*nat";
        let mut lines = text.lines().skip_while(is_before);
        if lines.next() != Some("*nat") {
            return Err("it does not start with *nat".to_owned());
        }
        let mut committed = false;
        for line in lines {
            let at = |problem: String| format!("{line:?}: {problem}");
            if committed {
                return Err(at("after COMMIT".to_owned()));
            }
            if line == "COMMIT" {
                committed = true;
            } else if let Some(declaration) = line.strip_prefix(':') {
                let (name, chain) = chain(declaration).map_err(at)?;
                if chains.insert(name, chain).is_some() {
                    return Err(at("declared twice".to_owned()));
                }
            } else {
                let (name, rule) = rule(line).map_err(at)?;
                let chain: &mut Chain = chains
                    .get_mut(&name)
                    .ok_or_else(|| at("no such chain".to_owned()))?;
                chain.rules.push(rule);
            }
        }
        if !committed {
            return Err("it does not end with COMMIT".to_owned());
        }
        let nat = Self { chains };
        nat.check()?;
        Ok(nat)
    }

    fn check(&self) -> Result<(), String> {
        if let Some(missing) = BUILTIN
            .iter()
            .find(|name| !self.chains.contains_key(**name))
        {
            return Err(format!("chain {missing} is missing"));
        }
        for rule in self.chains.values().flat_map(|chain| &chain.rules) {
            if let Target::Jump(name) = &rule.target
                && self.chains.get(name).is_none_or(|chain| chain.builtin)
            {
                return Err(format!("{:?}: nothing to jump to", rule.line));
            }
        }
        Ok(())
    }
}

/// `NAME POLICY [packets:bytes]`.
fn chain(declaration: &str) -> Result<(String, Chain), String> {
    let [name, policy, _counters] = words(declaration)?;
    let builtin = BUILTIN.contains(&name);
    if policy != if builtin { "ACCEPT" } else { "-" } {
        return Err("not a policy for that chain".to_owned());
    }
    let rules = Vec::new();
    Ok((name.to_owned(), Chain { builtin, rules }))
}

fn words<const N: usize>(text: &str) -> Result<[&str; N], String> {
    let words: Vec<&str> = text.split_whitespace().collect();
    words.try_into().map_err(|_| format!("not {N} words"))
}

/// `-A CHAIN ...`, in the order the words come.
fn rule(line: &str) -> Result<(String, Rule), String> {
    let mut words = line.split_whitespace();
    let mut next = move || words.next();
    if next() != Some("-A") {
        return Err("not an -A line".to_owned());
    }
    let name = next().ok_or("no chain")?.to_owned();
    let mut seen = Seen::default();
    let mut matches = Vec::new();
    let mut target = None;
    while let Some(word) = next() {
        let negated = word == "!";
        let option = if negated {
            next().ok_or("nothing after !")?
        } else {
            word
        };
        let value = next().ok_or_else(|| format!("nothing after {option}"))?;
        seen.once(option)?;
        let field = match option {
            "-p" | "-m" | "-j" | "--to-ports" if negated => {
                return Err(format!("! before {option}"));
            }
            "-m" => {
                seen.module(value)?;
                continue;
            }
            "-j" => {
                target = Some(Target::named(value));
                continue;
            }
            "--to-ports" if matches!(target, Some(Target::Redirect(_))) => {
                seen.need("-p")?;
                target = Some(Target::Redirect(number(value)?));
                continue;
            }
            "--to-destination" if matches!(target, Some(Target::Redirect(_))) => {
                target = Some(Target::Redirect(port_of_loopback(value)?));
                continue;
            }
            "--comment" => continue,
            "--to-source" if value == "127.0.0.1" => continue,
            _ => field(option, value, &seen)?,
        };
        matches.push(Match { negated, field });
    }
    let target = match target {
        // The connection's own port; nothing here writes such a rule.
        Some(Target::Redirect(0)) => return Err("REDIRECT without --to-ports".to_owned()),
        Some(target) => target,
        None => return Err("no target".to_owned()),
    };
    let line = line.to_owned();
    let rule = Rule {
        line,
        matches,
        target,
    };
    Ok((name, rule))
}

/// What an option asks of a packet.
fn field(option: &str, value: &str, seen: &Seen<'_>) -> Result<Field, String> {
    Ok(match option {
        "-p" if value == "tcp" => Field::Udp(false),
        "-p" if value == "udp" => Field::Udp(true),
        "--dport" => {
            seen.need("port")?;
            Field::DestinationPort(vec![span(value, ':')?])
        }
        "--dports" => {
            seen.need("multiport")?;
            let ports = value.split(',').map(|ports| span(ports, ':'));
            Field::DestinationPort(ports.collect::<Result<_, _>>()?)
        }
        "--uid-owner" => {
            seen.need("owner")?;
            Field::Uid(span(value, '-')?)
        }
        "--gid-owner" => {
            seen.need("owner")?;
            Field::Gid(number(value)?)
        }
        "--mark" => {
            seen.need("mark")?;
            let (value, mask) = value.split_once('/').ok_or("no mask")?;
            let (value, mask) = (hexadecimal(value)?, hexadecimal(mask)?);
            Field::Mark { value, mask }
        }
        "-s" => Field::Source(net(value)?),
        "-d" => Field::Destination(net(value)?),
        "-i" => Field::Input(interface(value)?),
        "-o" => Field::Output(interface(value)?),
        _ => return Err(format!("{option} {value} is not understood")),
    })
}

impl Target {
    /// What `-j` names; the port of a redirection comes after it.
    fn named(target: &str) -> Self {
        match target {
            "ACCEPT" => Self::Accept,
            "RETURN" => Self::Return,
            "REDIRECT" | "DNAT" => Self::Redirect(0),
            // Of an answer's way back.
            "SNAT" => Self::Return,
            chain => Self::Jump(chain.to_owned()),
        }
    }
}

/// The words of a rule so far: iptables requires modules before their options, and each option once.
#[derive(Default)]
struct Seen<'a> {
    words: Vec<&'a str>,
}

impl<'a> Seen<'a> {
    fn once(&mut self, option: &'a str) -> Result<(), String> {
        if option != "-m" && self.words.contains(&option) {
            return Err(format!("a second {option}"));
        }
        self.words.push(option);
        Ok(())
    }

    fn module(&mut self, name: &'a str) -> Result<(), String> {
        match name {
            "tcp" | "udp" | "multiport" => {
                self.need("-p")?;
                self.words.push("port");
            }
            "comment" | "mark" => {}
            // Another owner match: its options are its own, both must hold.
            "owner" => self.words.retain(|word| !word.ends_with("-owner")),
            _ => return Err(format!("no module {name}")),
        }
        self.words.push(name);
        Ok(())
    }

    fn need(&self, word: &str) -> Result<(), String> {
        if self.words.contains(&word) {
            Ok(())
        } else {
            Err(format!("{word} must come first"))
        }
    }
}

fn number<T: FromStr>(text: &str) -> Result<T, String> {
    text.parse().map_err(|_| format!("{text} is not a number"))
}

fn hexadecimal(text: &str) -> Result<u32, String> {
    let digits = text.strip_prefix("0x").ok_or("no 0x")?;
    u32::from_str_radix(digits, 16).map_err(|_| format!("{text} is not a number"))
}

/// The port of a loopback address and port.
fn port_of_loopback(text: &str) -> Result<u16, String> {
    let mut loopback = ["127.0.0.1:", "[::1]:"].into_iter();
    let port = loopback.find_map(|host| text.strip_prefix(host));
    number(port.ok_or("not loopback")?)
}

/// One number or two with something between them.
fn span<T: FromStr + Copy>(text: &str, between: char) -> Result<RangeInclusive<T>, String> {
    let (first, last) = text.split_once(between).unwrap_or((text, text));
    Ok(number(first)?..=number(last)?)
}

/// `xtables_parse_interface` in iptables' libxtables/xtables.c.
fn interface(name: &str) -> Result<Device, String> {
    const IFNAMSIZ: usize = 16;
    if name.len() >= IFNAMSIZ {
        return Err(format!(
            "interface name {name} must be shorter than IFNAMSIZ"
        ));
    }
    let bytes = name.as_bytes().to_vec();
    let compared = if name.ends_with('+') {
        bytes.len() - 1
    } else {
        bytes.len() + 1
    };
    Ok(Device { bytes, compared })
}

fn net(text: &str) -> Result<Net, String> {
    let (addr, prefix) = text.split_once('/').ok_or("no prefix length")?;
    let addr: IpAddr = number(addr)?;
    let prefix = number(prefix)?;
    if prefix > if addr.is_ipv4() { 32 } else { 128 } {
        return Err(format!("/{prefix} is too long"));
    }
    Ok(Net { addr, prefix })
}
