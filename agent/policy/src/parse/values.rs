//! Single values: a port, an id, a CIDR.

use std::{
    net::{IpAddr, Ipv4Addr},
    str::FromStr,
};

use ipnet::{IpNet, Ipv4Net};

use crate::{
    exclusions::Span,
    policy::{Mode, OUTBOUND_MARK},
    text::{self, shortened},
};

pub(super) fn before_sidecar(text: &str) -> Result<bool, String> {
    match text {
        "passthrough" => Ok(true),
        "refuse" => Ok(false),
        _ => Err("write passthrough or refuse".to_owned()),
    }
}

/// Whether all readers understand a number alike: for iptables one that begins with 0 is octal.
fn is_plain(number: &str) -> bool {
    number == "0" || !number.starts_with(['0', '+'])
}

/// A number for iptables.
fn plain<T>(text: &str, read: fn(&str) -> Result<T, String>) -> Result<T, String> {
    match is_plain(text) {
        true => read(text),
        false => Err(format!(
            "{:?} begins with {:?}; write the number alone",
            shortened(text),
            &text[..1]
        )),
    }
}

/// A port for iptables.
pub(super) fn plain_port(text: &str) -> Result<u16, String> {
    plain(text, port)
}

/// A user or group for iptables, which looks names up in the image of istio-init. One is the same in all.
pub(crate) fn owner(text: &str) -> Result<u32, String> {
    match text {
        "root" => Ok(0),
        text => plain(text, id),
    }
}

pub(crate) fn port(text: &str) -> Result<u16, String> {
    match text.parse() {
        Ok(0) | Err(_) => Err(format!(
            "{:?} is not a port; write a number from 1 to 65535",
            shortened(text)
        )),
        Ok(port) => Ok(port),
    }
}

/// A port or a range as iptables reads it after `--dport`: `80`, `8000:9000`, `:1023`, `1024:`.
pub(crate) fn port_range(text: &str) -> Result<Span, String> {
    let bound = |text: &str, open: u16| match text {
        "" => Some(open),
        text => text.parse().ok().filter(|_| is_plain(text)),
    };
    let (first, last) = match text.split_once(':') {
        Some((first, last)) => (bound(first, 0), bound(last, u16::MAX)),
        None if text.is_empty() => (None, None),
        None => (bound(text, 0), bound(text, 0)),
    };
    match (first, last) {
        (Some(first), Some(last)) if first <= last => Ok(Span {
            first: first.into(),
            last: last.into(),
        }),
        _ => Err(format!(
            "{:?} is not a port; write a number from 0 to 65535, or a range such as 8000:9000",
            shortened(text)
        )),
    }
}

/// One port or several, as [`Span`] or iptables reads them.
pub(crate) fn plain_ports(text: &str) -> Result<Span, String> {
    for bound in text.split(['-', ':']) {
        plain(bound, |_| Ok(()))?;
    }
    ports(text).or_else(|_| port_range(text))
}

/// One port or several, as [`Span`] reads them.
pub(crate) fn ports(text: &str) -> Result<Span, String> {
    let span: Span = text.parse()?;
    let is_valid = span.first > 0 && span.last <= u32::from(u16::MAX);
    is_valid.then_some(span).ok_or_else(|| {
        format!(
            "{:?} is not a port; write a number from 1 to 65535, or a range such as 8000-9000",
            shortened(text)
        )
    })
}

/// The same for iptables.
pub(super) fn plain_port_or_zero(text: &str) -> Result<u16, String> {
    plain(text, port_or_zero)
}

pub(crate) fn port_or_zero(text: &str) -> Result<u16, String> {
    if text == "0" { Ok(0) } else { port(text) }
}

pub(crate) fn id(text: &str) -> Result<u32, String> {
    match text.parse() {
        Ok(u32::MAX) | Err(_) => Err(format!(
            "{:?} is not a numeric user or group id; write a number such as 1337",
            shortened(text)
        )),
        Ok(id) => Ok(id),
    }
}

pub(super) fn mode(text: &str) -> Result<Mode, String> {
    match text {
        "REDIRECT" => Ok(Mode::Redirect),
        "TPROXY" => Ok(Mode::Tproxy),
        "NONE" => Ok(Mode::None),
        _ => Err("write REDIRECT, TPROXY or NONE".to_owned()),
    }
}

pub(super) fn tproxy_mark(text: &str) -> Result<u32, String> {
    match text.parse() {
        Ok(0) | Err(_) => Err("write a mark from 1 to 4294967295, such as 1337".to_owned()),
        Ok(OUTBOUND_MARK) => Err(format!(
            "{OUTBOUND_MARK} marks the proxy's other connections; write another one, such as 1337"
        )),
        Ok(mark) => Ok(mark),
    }
}

pub(super) fn tproxy_table(text: &str) -> Result<u32, String> {
    // default, main and local of linux/rtnetlink.h: a default route to lo in one of these would end the pod's
    // connections.
    match text.parse() {
        Ok(0 | 253..=255) | Err(_) => {
            Err("write a routing table of its own, such as 133; not 0 or 253 to 255".to_owned())
        }
        Ok(table) => Ok(table),
    }
}

pub(crate) fn boolean(text: &str) -> Result<bool, String> {
    match text {
        "" => Ok(false),
        text => text::boolean(text).ok_or_else(|| "write true or false".to_owned()),
    }
}

/// A CIDR or an address.
pub(crate) fn range(text: &str) -> Result<IpNet, String> {
    match IpAddr::from_str(text) {
        Ok(addr) => not_mapped(addr.into(), text),
        Err(_) => cidr(text),
    }
}

pub(crate) fn cidr(text: &str) -> Result<IpNet, String> {
    if text == "*" {
        return Err("\"*\" is not allowed in a list; write CIDRs such as 10.0.0.0/8".to_owned());
    }
    // Not as ipnet reads it: to others a part that begins with 0 is octal, or an error.
    let net = text.split_once('/').and_then(|(addr, length)| {
        let is_plain = is_plain(length);
        let net = IpNet::new(IpAddr::from_str(addr).ok()?, length.parse().ok()?);
        net.ok().filter(|_| is_plain)
    });
    let net = net.ok_or_else(|| {
        format!(
            "{:?} is not a CIDR; write one such as 10.0.0.0/8 or 2001:db8::/32",
            shortened(text)
        )
    })?;
    not_mapped(net, text)
}

fn not_mapped(net: IpNet, text: &str) -> Result<IpNet, String> {
    match net {
        // The IPv4 rules apply to v4-mapped connections, so such a range would match nothing.
        IpNet::V6(v6) if v6.network().to_ipv4_mapped().is_some() => {
            Err(format!("{text:?} is an IPv4 range; write it as a.b.c.d/n"))
        }
        net => Ok(net),
    }
}

pub(super) fn loopback(text: &str) -> Result<Ipv4Net, String> {
    const LOOPBACK: Ipv4Net = Ipv4Net::new_assert(Ipv4Addr::new(127, 0, 0, 0), 8);
    match Ipv4Net::from_str(text) {
        Ok(net) if LOOPBACK.contains(&net) => Ok(net),
        _ => Err("write a range within 127.0.0.0/8, such as 127.0.0.1/32".to_owned()),
    }
}

/// An interface's name, or a pattern for several of them (see [`interfaces`](crate::interfaces)): iptables accepts
/// 15 bytes of either.
pub(crate) fn interface(text: &str) -> Result<String, String> {
    // dev_valid_name in net/core/dev.c.
    const MAX: usize = 15;
    let valid = text.len() <= MAX
        && !matches!(text, "." | "..")
        && !text.contains(|c: char| c == '/' || c == ':' || c.is_whitespace());
    // The kernel accepts these. iptables-restore does not read them as part of a name, and a terminal
    // that shows the rules may execute them.
    let plain = text != "!" && !text.contains(|c: char| c.is_control() || "\"'\\".contains(c));
    if !valid || !plain {
        return Err(format!("{:?} is not an interface name", shortened(text)));
    }
    Ok(text.to_owned())
}

#[cfg(test)]
mod tests;
