//! Listeners. They send who accepted, and how the accepting end sees the connection.
//! A sidecar hands connections to [`CHAIN`] on, as Envoy would: outbound ones to where they were
//! going, inbound ones to the app, from 127.0.0.6.

use std::{
    collections::BTreeMap,
    io::{self, Write as _},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

use anyhow::Result;
use socket2::{Domain, Protocol, Socket, Type};

use super::{orders, say};
use crate::{
    targets::{CHAIN, SELF, SELF6, SIDECAR_IN, SIDECAR_OUT},
    wire::{Hop, Order, Who},
};

/// How long an accept waits before it looks whether it is to stop.
const LOOK_INTERVAL: Duration = Duration::from_millis(50);
const WAIT_TIMEOUT: Duration = Duration::from_secs(10);
const BACKLOG: i32 = 1024;

/// A socket and the thread that serves it.
struct Listener {
    stop: Arc<AtomicBool>,
    thread: thread::JoinHandle<()>,
}

/// Serves until stdin ends.
pub fn run(who: Who, ports: &[u16]) -> Result<()> {
    let mut groups: BTreeMap<(u16, bool), Vec<Listener>> = BTreeMap::new();
    for port in ports {
        for v6 in [false, true] {
            groups.insert((*port, v6), vec![open(who, *port, v6)?]);
        }
    }
    say(&"ready")?;
    for order in orders() {
        if let Order::Keep(port, wanted) = order? {
            for v6 in [false, true] {
                keep(groups.entry((port, v6)).or_default(), wanted, || {
                    open(who, port, v6)
                })?;
            }
        }
        say(&"done")?;
    }
    Ok(())
}

/// Listens and never accepts: the few that fit in the queue are made, everybody else hangs.
pub fn hang(ports: &[u16]) -> Result<()> {
    let mut sockets = Vec::new();
    for port in ports {
        for v6 in [false, true] {
            sockets.push(bound(*port, v6, 0)?);
        }
    }
    say(&"ready")?;
    orders().for_each(drop);
    Ok(())
}

fn keep(
    group: &mut Vec<Listener>,
    wanted: usize,
    open: impl Fn() -> io::Result<Listener>,
) -> io::Result<()> {
    while group.len() < wanted {
        group.push(open()?);
    }
    // The oldest go: the later ones must be found as well.
    for listener in group.drain(..group.len() - wanted) {
        listener.stop.store(true, Ordering::Relaxed);
        let _ = listener.thread.join();
    }
    Ok(())
}

/// A listening socket.
pub fn bound(port: u16, v6: bool, backlog: i32) -> io::Result<Socket> {
    let (domain, any): (_, IpAddr) = if v6 {
        (Domain::IPV6, Ipv6Addr::UNSPECIFIED.into())
    } else {
        (Domain::IPV4, Ipv4Addr::UNSPECIFIED.into())
    };
    let socket = Socket::new(domain, Type::STREAM, Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    socket.set_reuse_port(true)?;
    if v6 {
        socket.set_only_v6(true)?;
    }
    socket.bind(&SocketAddr::new(any, port).into())?;
    socket.listen(backlog)?;
    Ok(socket)
}

fn open(who: Who, port: u16, v6: bool) -> io::Result<Listener> {
    let socket = bound(port, v6, BACKLOG)?;
    socket.set_read_timeout(Some(LOOK_INTERVAL))?;
    let stop = Arc::new(AtomicBool::new(false));
    let stopped = Arc::clone(&stop);
    let thread = thread::spawn(move || {
        while !stopped.load(Ordering::Relaxed) {
            if let Ok((accepted, peer)) = socket.accept() {
                // The client may be gone already.
                let _ = answer(accepted, peer.as_socket(), who, port);
            }
        }
    });
    Ok(Listener { stop, thread })
}

fn answer(mut accepted: Socket, peer: Option<SocketAddr>, who: Who, port: u16) -> io::Result<()> {
    let peer = peer.ok_or(io::ErrorKind::InvalidData)?;
    let original = original(&accepted, peer.is_ipv4());
    let hop = Hop {
        who,
        port,
        original,
        peer,
    };
    accepted.write_all(&hop.to_bytes())?;
    let on = match original {
        Some(to) if matches!(who, Who::Sidecar(_)) && to.port() == CHAIN => match port {
            SIDECAR_OUT => Some((None, to)),
            SIDECAR_IN => Some((Some(if to.is_ipv4() { SELF } else { SELF6 }), to)),
            _ => None,
        },
        _ => None,
    };
    if let Some((source, to)) = on {
        thread::spawn(move || {
            let more = hand_on(source, to).unwrap_or_else(|_| vec![Hop { port: 0, ..hop }]);
            for hop in more {
                let _ = accepted.write_all(&hop.to_bytes());
            }
        });
    }
    Ok(())
}

/// Connects onwards; who it came by.
fn hand_on(source: Option<IpAddr>, to: SocketAddr) -> io::Result<Vec<Hop>> {
    let mut socket = Socket::new(Domain::for_address(to), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_linger(Some(Duration::ZERO))?;
    socket.set_read_timeout(Some(WAIT_TIMEOUT))?;
    socket.set_write_timeout(Some(WAIT_TIMEOUT))?;
    if let Some(source) = source {
        socket.bind(&SocketAddr::new(source, 0).into())?;
    }
    socket.connect(&to.into())?;
    Hop::read_all(&mut socket)
}

fn original(socket: &Socket, v4: bool) -> Option<SocketAddr> {
    let answer = if v4 {
        socket.original_dst_v4()
    } else {
        socket.original_dst_v6()
    };
    answer.ok()?.as_socket()
}
