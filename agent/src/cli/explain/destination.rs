//! Where a connection goes: an address or a host name, and a port.

use std::{
    fmt,
    net::{IpAddr, SocketAddr, ToSocketAddrs as _},
    str::FromStr,
    sync::mpsc,
    thread,
    time::Duration,
};

use anyhow::{Context as _, Result, bail};

/// Longest wait for the system's resolver.
const WAIT_TIMEOUT: Duration = Duration::from_secs(3);
/// Longest name that DNS can have.
const LONGEST: usize = 253;
const FORM: &str = "write IP:PORT, [IPV6]:PORT or NAME:PORT";

/// What `--dst` names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Destination {
    /// An address.
    Address(SocketAddr),
    /// A host name.
    Name {
        /// The name.
        host: String,
        /// The port.
        port: u16,
    },
}

/// The address that is explained.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Resolved {
    /// It.
    pub(super) address: SocketAddr,
    /// All addresses of the name, if it was a name.
    pub(super) of_name: Vec<IpAddr>,
}

impl FromStr for Destination {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Ok(address) = text.parse::<SocketAddr>()
            && address.port() != 0
        {
            return Ok(Self::Address(address));
        }
        let (host, port) = text.rsplit_once(':').ok_or(FORM)?;
        if host.parse::<std::net::Ipv6Addr>().is_ok() {
            return Err(format!(
                "an IPv6 address needs brackets: write [{host}]:{port}"
            ));
        }
        let number = port.parse().ok().filter(|port| *port != 0);
        let port = number.ok_or_else(|| format!("{port:?} is not a port; {FORM}"))?;
        if !is_host(host) {
            return Err(format!(
                "{host:?} is neither an address nor a host name; {FORM}"
            ));
        }
        Ok(Self::Name {
            host: host.to_owned(),
            port,
        })
    }
}

impl fmt::Display for Destination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address(address) => address.fmt(f),
            Self::Name { host, port } => write!(f, "{host}:{port}"),
        }
    }
}

/// The resolver would read numbers alone as an address of an older notation.
fn is_host(text: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
    (1..=LONGEST).contains(&text.len())
        && text.bytes().all(allowed)
        && text.bytes().any(|byte| byte.is_ascii_alphabetic())
}

impl Destination {
    /// The address; of a name with several, the first one of the system's resolver.
    ///
    /// # Errors
    /// If the name has no address, or the resolver does not answer in time.
    pub(super) fn resolve(&self) -> Result<Resolved> {
        let (host, port) = match self {
            Self::Address(address) => {
                return Ok(Resolved {
                    address: *address,
                    of_name: Vec::new(),
                });
            }
            Self::Name { host, port } => (host.clone(), *port),
        };
        let (sender, answer) = mpsc::channel();
        let name = host.clone();
        // The resolver cannot be interrupted. The thread ends with the process.
        thread::spawn(move || {
            let found = (name.as_str(), port).to_socket_addrs();
            let _ = sender.send(found.map(Iterator::collect::<Vec<_>>));
        });
        let cure = "pass the address as --dst IP:PORT";
        let Ok(found) = answer.recv_timeout(WAIT_TIMEOUT) else {
            bail!(
                "the resolver has not answered for {host} within {}s; {cure}",
                WAIT_TIMEOUT.as_secs()
            );
        };
        let found = found.with_context(|| format!("resolve {host}; {cure}"))?;
        let address = *found
            .first()
            .with_context(|| format!("{host} has no address; {cure}"))?;
        let mut of_name: Vec<IpAddr> = found.iter().map(SocketAddr::ip).collect();
        of_name.dedup();
        Ok(Resolved { address, of_name })
    }
}

#[cfg(test)]
mod tests;
