//! Flags of `trace`: the same for one node and for a cluster.

use std::time::Duration;

use clap::{Args, ValueEnum};
use ipnet::IpNet;
use sidetrack_common::rule::{Class, Rule};

use sidetrack_base::duration::positive_duration;

/// Which connections, and for how long.
#[derive(Clone, Debug, Args)]
pub struct Flags {
    /// Only connections that were refused, or that a sidecar did not accept
    #[arg(long)]
    pub refused: bool,
    /// Only one direction
    #[arg(long, value_enum)]
    pub direction: Option<Direction>,
    /// Only one verdict
    #[arg(long, value_enum)]
    pub verdict: Option<Verdict>,
    /// Only one rule or reason, by the name that trace shows, such as out-all
    #[arg(long, value_name = "NAME", value_parser = rule_name)]
    pub rule: Option<String>,
    /// Only this dialed port
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    pub port: Option<u16>,
    /// Only this address or range at either end
    #[arg(long, value_name = "IP|CIDR", value_parser = address)]
    pub address: Option<IpNet>,
    /// Only this process: its id, or its name of at most 15 characters
    #[arg(long, value_name = "PID|NAME", value_parser = process)]
    pub process: Option<String>,
    /// End after that long, such as 30s, instead of at Ctrl-C
    #[arg(long, value_name = "DURATION", value_parser = positive_duration)]
    pub duration: Option<Duration>,
    /// End after that many connections
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u64).range(1..))]
    pub count: Option<u64>,
}

/// Of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Direction {
    /// From the pod
    Outbound,
    /// To the pod
    Inbound,
}

/// What became of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Verdict {
    /// To the sidecar
    Redirect,
    /// To its destination directly
    Untouched,
    /// By sidetrack
    Refuse,
    /// Redirected, and the sidecar did not accept it
    Failed,
    /// Redirected, and closed by the application before the sidecar accepted it
    GivenUp,
}

/// The name of a value, as on the command line.
pub fn name(value: impl ValueEnum) -> String {
    let value = value.to_possible_value();
    value.map_or_else(String::new, |value| value.get_name().to_owned())
}

impl Flags {
    /// Two flags that no connection fits, as a sentence.
    #[must_use]
    pub fn contradiction(&self) -> Option<String> {
        let rule = self.rule.as_deref().and_then(Rule::from_name);
        let refusals = [Verdict::Refuse, Verdict::Failed];
        let wrong_verdict = self.verdict.filter(|verdict| !refusals.contains(verdict));
        if let (true, Some(verdict)) = (self.refused, wrong_verdict) {
            let verdict = name(verdict);
            return Some(format!(
                "--refused and --verdict {verdict} exclude each other: pass one of them"
            ));
        }
        let rule = rule?;
        let class = rule.class();
        let named = format!("rule {}", rule.name());
        if self.refused && !class.is_refusal() {
            return Some(format!(
                "{named} refuses no connection: leave --refused out"
            ));
        }
        let verdicts = verdicts(class);
        if let Some(verdict) = self.verdict.filter(|verdict| !verdicts.contains(verdict)) {
            let (own, verdict) = (name(verdicts[0]), name(verdict));
            return Some(format!(
                "the verdict of {named} is {own}: leave --verdict {verdict} out"
            ));
        }
        let direction = match class {
            Class::Outbound => Direction::Outbound,
            Class::Inbound => Direction::Inbound,
            _ => return None,
        };
        let other = self.direction.filter(|given| *given != direction)?;
        let (own, other) = (name(direction), name(other));
        Some(format!(
            "{named} is about {own} connections: leave --direction {other} out"
        ))
    }

    /// The flags that say which connections, as words of a command line.
    #[must_use]
    pub fn filter_words(&self) -> Vec<String> {
        let mut words = Vec::new();
        words.extend(self.refused.then(|| "--refused".to_owned()));
        // Attached, because a process may be named like a flag.
        for (flag, value) in [
            ("direction", self.direction.map(name)),
            ("verdict", self.verdict.map(name)),
            ("rule", self.rule.clone()),
            ("port", self.port.map(|port| port.to_string())),
            ("address", self.address.map(|address| address.to_string())),
            ("process", self.process.clone()),
        ] {
            words.extend(value.map(|value| format!("--{flag}={value}")));
        }
        words
    }
}

/// The verdicts of connections that a rule of a class has decided.
fn verdicts(class: Class) -> &'static [Verdict] {
    match class {
        Class::Outbound | Class::Inbound => &[Verdict::Redirect],
        Class::Untouched | Class::BeforeSidecar | Class::Udp => &[Verdict::Untouched],
        Class::Refused => &[Verdict::Refuse],
        Class::Failed => &[Verdict::Failed, Verdict::Refuse],
        Class::GivenUp => &[Verdict::GivenUp],
    }
}

fn process(text: &str) -> Result<String, String> {
    // The kernel keeps 15 bytes of a name.
    const LONGEST: usize = 15;
    if (1..=LONGEST).contains(&text.len()) {
        return Ok(text.to_owned());
    }
    Err(format!(
        "write a process id, or a name of 1 to {LONGEST} bytes: the kernel cuts longer ones there"
    ))
}

fn rule_name(text: &str) -> Result<String, String> {
    if Rule::from_name(text).is_some() {
        return Ok(text.to_owned());
    }
    let names: Vec<&str> = Rule::ALL.iter().map(|rule| rule.name()).collect();
    Err(format!("no such rule; there are {}", names.join(", ")))
}

fn address(text: &str) -> Result<IpNet, String> {
    if let Ok(ip) = text.parse::<std::net::IpAddr>() {
        return Ok(ip.into());
    }
    text.parse()
        .map_err(|_| "write an address or a range such as 10.0.0.0/8".to_owned())
}

#[cfg(test)]
mod tests;
