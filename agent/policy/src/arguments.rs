//! The command line of istio-init, in each form injectors have written it: `-p 15001 -u 1337`
//! (1.1's shell script), `istio-iptables -p 15001 ...`, long flags, `--flag=value`, `-f=value`.

use crate::{
    error::PolicyError,
    inputs::{Input, Inputs},
};

/// Flags with a value that are inputs: short form, long form.
const FLAGS: [(&str, &str, Input); 16] = [
    ("-p", "--envoy-port", Input::EnvoyPort),
    ("-z", "--inbound-capture-port", Input::InboundCapturePort),
    ("-e", "--inbound-tunnel-port", Input::InboundTunnelPort),
    ("-u", "--proxy-uid", Input::ProxyUid),
    ("-g", "--proxy-gid", Input::ProxyGid),
    (
        "-m",
        "--istio-inbound-interception-mode",
        Input::InterceptionMode,
    ),
    ("-t", "--istio-inbound-tproxy-mark", Input::TproxyMark),
    (
        "-r",
        "--istio-inbound-tproxy-route-table",
        Input::TproxyTable,
    ),
    ("-b", "--istio-inbound-ports", Input::InboundPorts),
    (
        "-d",
        "--istio-local-exclude-ports",
        Input::LocalExcludePorts,
    ),
    ("-i", "--istio-service-cidr", Input::ServiceCidr),
    (
        "-x",
        "--istio-service-exclude-cidr",
        Input::ServiceExcludeCidr,
    ),
    ("-q", "--istio-outbound-ports", Input::OutboundPorts),
    (
        "-o",
        "--istio-local-outbound-ports-exclude",
        Input::OutboundPortsExclude,
    ),
    ("-c", "--istio-exclude-interfaces", Input::ExcludeInterfaces),
    ("-k", "--kube-virt-interfaces", Input::VirtualInterfaces),
];

/// Flags with a value that change nothing about which connections are captured.
const OTHER_WITH_VALUE: [&str; 5] = [
    "--iptables-probe-port",
    "--probe-timeout",
    "--network-namespace",
    "--log_output_level",
    "--iptables-version",
];

/// Switches: no value, or one attached.
const SWITCHES: [(&str, Input); 2] = [
    ("--redirect-dns", Input::DnsCapture),
    ("--capture-all-dns", Input::CaptureAllDns),
];

/// Reads the words after (and including) the program name. Of two values for a flag the last
/// counts, as istio-iptables has it. `place` is what to call the container.
pub fn parse<'a>(
    words: impl IntoIterator<Item = &'a str>,
    place: &str,
) -> Result<Inputs, PolicyError> {
    let mut inputs = Inputs::default();
    let mut words = words.into_iter();
    while let Some(word) = words.next() {
        if !word.starts_with('-') {
            // The program's name, or a word that belongs to none of our flags.
            continue;
        }
        let (flag, attached) = split(word);
        let origin = format!("argument {flag} of {place}");
        if let Some((_, input)) = SWITCHES.iter().find(|(name, _)| flag == *name) {
            inputs.replace(*input, attached.unwrap_or("true"), origin);
            continue;
        }
        let known = FLAGS
            .iter()
            .find(|(short, long, _)| flag == *short || flag == *long);
        if known.is_none() && !OTHER_WITH_VALUE.contains(&flag) {
            // A switch without a value; with one attached it stays in this word.
            continue;
        }
        let value = match attached {
            Some(value) => value,
            None => words.next().ok_or_else(|| PolicyError {
                origin: format!("the command line of {place}"),
                value: word.to_owned(),
                problem: "the flag's value is missing".to_owned(),
            })?,
        };
        if let Some((_, _, input)) = known {
            inputs.replace(*input, value, origin);
        }
    }
    Ok(inputs)
}

/// Switches that change no rule.
const HARMLESS: [&str; 5] = [
    "--cni-mode",
    "--force-apply",
    "--reconcile",
    "--restore-format",
    "--run-validation",
];

/// The flags of a command line that [`parse`] passes over because it does not know them.
pub fn unknown<'a>(words: impl IntoIterator<Item = &'a str>) -> Vec<&'a str> {
    let mut unknown = Vec::new();
    let mut words = words.into_iter();
    while let Some(word) = words.next() {
        if !word.starts_with('-') {
            continue;
        }
        let (flag, attached) = split(word);
        let takes_value = OTHER_WITH_VALUE.contains(&flag)
            || FLAGS
                .iter()
                .any(|(short, long, _)| flag == *short || flag == *long);
        if takes_value && attached.is_none() {
            words.next();
        }
        let is_switch = SWITCHES.iter().any(|(name, _)| flag == *name);
        if !takes_value && !is_switch && !HARMLESS.contains(&flag) {
            unknown.push(flag);
        }
    }
    unknown
}

/// A flag and the value attached to it: `--flag=value`, `-f=value`, `-fvalue`.
fn split(word: &str) -> (&str, Option<&str>) {
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
