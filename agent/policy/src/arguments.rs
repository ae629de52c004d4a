//! The command line of istio-init, in each form injectors have written it: `-p 15001 -u 1337`
//! (1.1's shell script), `istio-iptables -p 15001 ...`, long flags, `--flag=value`, `-f=value`.

use std::iter;

use crate::{
    error::PolicyError,
    inputs::{Input, Inputs},
};

/// Flags with a value that are inputs: short form, long form.
#[rustfmt::skip]
const FLAGS: [(&str, &str, Input); 16] = [
    ("-p", "--envoy-port", Input::EnvoyPort),
    ("-z", "--inbound-capture-port", Input::InboundCapturePort),
    ("-e", "--inbound-tunnel-port", Input::InboundTunnelPort),
    ("-u", "--proxy-uid", Input::ProxyUid),
    ("-g", "--proxy-gid", Input::ProxyGid),
    ("-m", "--istio-inbound-interception-mode", Input::InterceptionMode),
    ("-t", "--istio-inbound-tproxy-mark", Input::TproxyMark),
    ("-r", "--istio-inbound-tproxy-route-table", Input::TproxyTable),
    ("-b", "--istio-inbound-ports", Input::InboundPorts),
    ("-d", "--istio-local-exclude-ports", Input::LocalExcludePorts),
    ("-i", "--istio-service-cidr", Input::ServiceCidr),
    ("-x", "--istio-service-exclude-cidr", Input::ServiceExcludeCidr),
    ("-q", "--istio-outbound-ports", Input::OutboundPorts),
    ("-o", "--istio-local-outbound-ports-exclude", Input::OutboundPortsExclude),
    ("-c", "--istio-exclude-interfaces", Input::ExcludeInterfaces),
    ("-k", "--kube-virt-interfaces", Input::VirtualInterfaces),
];

/// Flags with a value that change nothing about which connections are captured.
const OTHER_WITH_VALUE: [&str; 6] = [
    "--force-iptables-binary",
    "--iptables-probe-port",
    "--probe-timeout",
    "--network-namespace",
    "--log_output_level",
    "--iptables-version",
];

/// Switches: no value, or one attached.
const SWITCHES: [(&str, Input); 3] = [
    ("--dual-stack", Input::DualStack),
    ("--redirect-dns", Input::DnsCapture),
    ("--capture-all-dns", Input::CaptureAllDns),
];

/// Switches that change no decision. The rules of nftables are the same (`--native-nftables`).
const HARMLESS: [&str; 9] = [
    "--cni-mode",
    "--force-apply",
    "--host-nsenter-exec",
    "--iptables-trace-logging",
    "--native-nftables",
    "-f",
    "--reconcile",
    "--restore-format",
    "--run-validation",
];

/// What a flag means to a policy.
#[derive(Clone, Copy)]
enum FlagMeaning<'a> {
    /// An input has this value.
    Input(Input, &'a str),
    /// Nothing.
    Nothing,
    /// Its value is missing.
    NoValue,
    /// It is not known. It counts as a switch: the next word is not its value.
    Unknown,
}

/// Reads the words after (and including) the program name. Of two values for a flag the last
/// counts, as istio-iptables has it. `place` is what to call the container.
pub fn parse<'a>(
    words: impl IntoIterator<Item = &'a str>,
    place: &str,
) -> Result<Inputs, PolicyError> {
    let mut inputs = Inputs::default();
    for (flag, meaning) in flags(words) {
        match meaning {
            FlagMeaning::Input(input, value) => {
                inputs.replace(input, value, format!("argument {flag} of {place}"));
            }
            FlagMeaning::NoValue => {
                return Err(PolicyError {
                    origin: format!("the command line of {place}"),
                    value: flag.to_owned(),
                    problem: "the flag's value is missing".to_owned(),
                });
            }
            FlagMeaning::Nothing | FlagMeaning::Unknown => {}
        }
    }
    Ok(inputs)
}

/// Drops packets that connection tracking cannot match: `migrate` names it, and without connection tracking there are none.
const DROP_INVALID: &str = "--drop-invalid";

/// What of istio-init's command line may mean something that [`parse`] does not read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unread<'a> {
    /// It runs another program.
    Program(&'a str),
    /// A flag, or a value that kubelet fills in.
    Word(&'a str),
}

/// The first of these, if there is any.
pub fn unread<'a>(words: impl Iterator<Item = &'a str> + Clone) -> Option<Unread<'a>> {
    let is_program = |word: &str| {
        let name = word.rsplit('/').next().unwrap_or(word);
        ["istio-iptables", "istio-iptables.sh", "pilot-agent"].contains(&name)
    };
    let mut leading = words.clone().take_while(|word| !word.starts_with('-'));
    if let Some(program) = leading.clone().next()
        && !is_program(program)
        && !program.contains("$(")
    {
        return Some(Unread::Program(program));
    }
    let other = leading.find(|word| !is_program(word));
    let expanded = words.clone().find(|word| word.contains("$("));
    let mut unknown = unknown(words).into_iter();
    let unknown = unknown.find(|flag| *flag != DROP_INVALID);
    other.or(expanded).or(unknown).map(Unread::Word)
}

/// The flags of a command line that [`parse`] passes over because it does not know them.
pub fn unknown<'a>(words: impl IntoIterator<Item = &'a str>) -> Vec<&'a str> {
    flags(words)
        .filter(|(_, meaning)| matches!(meaning, FlagMeaning::Unknown))
        .map(|(flag, _)| flag)
        .collect()
}

/// The flags of a command line. Other words are the program's name, or belong to none of our flags.
fn flags<'a>(
    words: impl IntoIterator<Item = &'a str>,
) -> impl Iterator<Item = (&'a str, FlagMeaning<'a>)> {
    let mut words = words.into_iter();
    iter::from_fn(move || {
        let word = words.find(|word| word.starts_with('-'))?;
        let (flag, attached) = split(word);
        if let Some((_, input)) = SWITCHES.iter().find(|(name, _)| flag == *name) {
            let value = attached.unwrap_or("true");
            return Some((flag, FlagMeaning::Input(*input, value)));
        }
        let known = FLAGS
            .iter()
            .find(|(short, long, _)| flag == *short || flag == *long);
        if known.is_none() && !OTHER_WITH_VALUE.contains(&flag) {
            let is_harmless = HARMLESS.contains(&flag);
            let meaning = if is_harmless {
                FlagMeaning::Nothing
            } else {
                FlagMeaning::Unknown
            };
            return Some((flag, meaning));
        }
        let meaning = match (attached.or_else(|| words.next()), known) {
            (Some(value), Some((_, _, input))) => FlagMeaning::Input(*input, value),
            (Some(_), None) => FlagMeaning::Nothing,
            (None, _) => FlagMeaning::NoValue,
        };
        Some((flag, meaning))
    })
}

/// A flag and the value attached to it: `--flag=value`, `-f=value`, `-fvalue`.
pub(crate) fn split(word: &str) -> (&str, Option<&str>) {
    const SHORT: usize = 2;
    let short = word
        .get(..SHORT)
        .filter(|short| *short != "--" && word.len() > SHORT);
    if let Some(short) = short {
        let value = &word[SHORT..];
        return (short, Some(value.strip_prefix('=').unwrap_or(value)));
    }
    match word.split_once('=') {
        Some((flag, value)) => (flag, Some(value)),
        None => (word, None),
    }
}

#[cfg(test)]
mod tests;
