//! Checks interception from inside a pod, like Istio's init container `istio-validation`
//! (`tools/istio-iptables/pkg/validation`, Istio 1.7 and later).
//!
//! The proxy's user dials 127.0.0.6:15002 from 127.0.0.1, or with `--outside` another user 192.0.2.1:15002. Without interception nothing listens there. With it
//! the connection is redirected to the inbound port (with `--outside` to the outbound one), and its original destination has port 15002.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    time::{Duration, Instant},
};

use nix::{ifaddrs::getifaddrs, net::if_::InterfaceFlags};
use socket2::SockRef;
use tokio::{
    net::{TcpListener, TcpSocket, TcpStream},
    sync::mpsc,
};

/// The port that is dialed. No process listens on it.
pub const PROBE_PORT: u16 = 15002;
/// Time between two attempts. istio-validation waits a second, which delays pods that start a moment early.
const RETRY_INTERVAL: Duration = Duration::from_millis(200);

/// The parameters of a check.
#[derive(Clone, Copy, Debug)]
pub struct Trial {
    /// The sidecar's port for outbound connections.
    pub outbound_port: u16,
    /// The sidecar's port for inbound connections.
    pub inbound_port: u16,
    /// How long to repeat the check.
    pub patience: Duration,
    /// Whether IPv6 must be intercepted as well.
    pub ipv6: bool,
    /// What is dialed.
    pub probe: Probe,
}

/// What a check dials.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Probe {
    /// The sidecar's own source address, from loopback: for the proxy's user.
    OwnPod,
    /// An address outside that no host has (RFC 5737, RFC 3849): for any other user.
    Outside,
}

/// Why a family does not pass the check.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The check could not run.
    #[error("listen on {0}: {1}; run this before the sidecar starts, in its pod")]
    Listen(SocketAddr, io::Error),
    /// The check failed.
    #[error("{family} is not intercepted: {seen}")]
    NotIntercepted {
        /// IPv4 or IPv6.
        family: &'static str,
        /// The result of the last attempt.
        seen: String,
    },
}

/// Whether a pod's rules include IPv6: as in istio-init, if its first address is an IPv6 one.
#[must_use]
pub fn has_ipv6() -> bool {
    let addresses = getifaddrs().into_iter().flatten();
    let mut off_pod = addresses
        .filter(|interface| !interface.flags.contains(InterfaceFlags::IFF_LOOPBACK))
        .filter_map(|interface| interface.address)
        .filter_map(|address| {
            let v4 = address.as_sockaddr_in().map(|it| IpAddr::from(it.ip()));
            v4.or_else(|| address.as_sockaddr_in6().map(|it| IpAddr::from(it.ip())))
        })
        .filter(|address| !matches!(address, IpAddr::V6(v6) if v6.is_unicast_link_local()));
    off_pod.next().is_some_and(|address| address.is_ipv6())
}

/// Checks both families, one after the other. Returns what was found, in words.
///
/// # Errors
/// The first family that is not intercepted.
pub async fn run(trial: Trial) -> Result<Vec<String>, Failure> {
    let mut found = Vec::new();
    found.push(try_family(Family::V4, trial).await?);
    if trial.ipv6 {
        found.push(try_family(Family::V6, trial).await?);
    }
    Ok(found)
}

#[derive(Clone, Copy, Debug)]
enum Family {
    V4,
    V6,
}

impl Family {
    const fn name(self) -> &'static str {
        match self {
            Self::V4 => "IPv4",
            Self::V6 => "IPv6",
        }
    }

    const fn loopback(self) -> IpAddr {
        match self {
            Self::V4 => IpAddr::V4(Ipv4Addr::LOCALHOST),
            Self::V6 => IpAddr::V6(Ipv6Addr::LOCALHOST),
        }
    }

    /// What a check dials.
    const fn dialed(self, probe: Probe) -> IpAddr {
        match (self, probe) {
            (Self::V4, Probe::OwnPod) => IpAddr::V4(Ipv4Addr::new(127, 0, 0, 6)),
            (Self::V6, Probe::OwnPod) => IpAddr::V6(Ipv6Addr::new(0, 0, 0, 0, 0, 0, 0, 6)),
            (Self::V4, Probe::Outside) => IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)),
            (Self::V6, Probe::Outside) => {
                IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1))
            }
        }
    }
}

async fn try_family(family: Family, trial: Trial) -> Result<String, Failure> {
    let (sender, mut accepted) = mpsc::unbounded_channel();
    let mut listening = Vec::new();
    for port in [trial.outbound_port, trial.inbound_port] {
        let at = SocketAddr::new(family.loopback(), port);
        let listener = TcpListener::bind(at)
            .await
            .map_err(|error| Failure::Listen(at, error))?;
        let sender = sender.clone();
        listening.push(tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let _ = sender.send((port, original_destination(&stream, family)));
            }
        }));
        if trial.outbound_port == trial.inbound_port {
            break;
        }
    }
    let started = Instant::now();
    let found = wait(family, trial, started, &mut accepted).await;
    for task in listening {
        task.abort();
    }
    found
}

async fn wait(
    family: Family,
    trial: Trial,
    started: Instant,
    accepted: &mut mpsc::UnboundedReceiver<(u16, io::Result<SocketAddr>)>,
) -> Result<String, Failure> {
    let target = SocketAddr::new(family.dialed(trial.probe), PROBE_PORT);
    let mut seen = "no connection was accepted".to_owned();
    loop {
        let remaining = trial.patience.saturating_sub(started.elapsed());
        let attempt = tokio::time::sleep(RETRY_INTERVAL.min(remaining));
        tokio::pin!(attempt);
        let dialed = dial(family, target, trial.probe);
        tokio::pin!(dialed);
        let mut connected = None;
        loop {
            tokio::select! {
                Some((port, original)) = accepted.recv() => match original {
                    Ok(original) if original.port() == PROBE_PORT => {
                        return Ok(format!(
                            "{}: a connection to {target} reached port {port} with its original destination, {} ms after the start",
                            family.name(),
                            started.elapsed().as_millis()
                        ));
                    }
                    Ok(original) => seen = format!(
                        "a connection to {target} reached port {port} with original destination {original}"
                    ),
                    Err(error) => seen = format!(
                        "a connection to {target} reached port {port}, but its original destination is unknown: {error}"
                    ),
                },
                result = &mut dialed, if connected.is_none() => {
                    match result {
                        Ok(stream) => connected = Some(Some(stream)),
                        Err(error) => {
                            seen = format!("a connection to {target} did not reach the sidecar's ports: {error}");
                            connected = Some(None);
                        }
                    }
                }
                () = &mut attempt => break,
            }
        }
        if started.elapsed() >= trial.patience {
            let family = family.name();
            return Err(Failure::NotIntercepted { family, seen });
        }
    }
}

async fn dial(family: Family, target: SocketAddr, probe: Probe) -> io::Result<TcpStream> {
    let socket = match family {
        Family::V4 => TcpSocket::new_v4()?,
        Family::V6 => TcpSocket::new_v6()?,
    };
    if probe == Probe::OwnPod {
        socket.bind(SocketAddr::new(family.loopback(), 0))?;
    }
    socket.connect(target).await
}

fn original_destination(stream: &TcpStream, family: Family) -> io::Result<SocketAddr> {
    let socket = SockRef::from(stream);
    let found = match family {
        Family::V4 => socket.original_dst_v4(),
        Family::V6 => socket.original_dst_v6(),
    };
    found?
        .as_socket()
        .ok_or_else(|| io::ErrorKind::InvalidData.into())
}
