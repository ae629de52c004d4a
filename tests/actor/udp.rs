//! Sends and answers datagrams.

use std::{
    io,
    net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket},
    thread,
    time::Duration,
};

use anyhow::{Context as _, Result};
use lab::udp::{AnswerUdp, SendUdp, UdpAnswer};

use crate::{identity::run_as, visit};

/// Longest wait for an answer, unless another is asked for.
pub const WAIT_TIMEOUT: Duration = Duration::from_millis(1500);

/// Answers every datagram with its own address and the sender's.
pub fn answer(answer: &AnswerUdp) -> Result<()> {
    let socket = run_as(&answer.owner, || {
        visit::make(|| UdpSocket::bind(answer.address))
    })?;
    let socket = socket.with_context(|| format!("answer datagrams at {}", answer.address))?;
    let own = answer.address;
    thread::spawn(move || {
        let mut buffer = [0; 16];
        // A failed receive is the error of an earlier answer.
        loop {
            if let Ok((_, sender)) = socket.recv_from(&mut buffer)
                && let Ok(text) = serde_json::to_vec(&(own, sender))
            {
                let _ = socket.send_to(&text, sender);
            }
        }
    });
    Ok(())
}

/// Sends a datagram and waits for its answer; the errno if that fails.
pub fn send(send: &SendUdp, timeout: Duration) -> Result<Result<UdpAnswer, i32>> {
    let answered = run_as(&send.sender, || exchange(send, timeout))?;
    Ok(answered.map_err(|error| error.raw_os_error().unwrap_or(libc::EIO)))
}

fn exchange(send: &SendUdp, timeout: Duration) -> io::Result<UdpAnswer> {
    let any: SocketAddr = if send.destination.is_ipv4() {
        (Ipv4Addr::UNSPECIFIED, 0).into()
    } else {
        (Ipv6Addr::UNSPECIFIED, 0).into()
    };
    let socket = visit::make(|| UdpSocket::bind(send.source.unwrap_or(any)))?;
    socket.set_read_timeout(Some(timeout))?;
    let peer = if send.connected {
        socket.connect(send.destination)?;
        socket.send(b"ping")?;
        Some(socket.peer_addr()?)
    } else {
        socket.send_to(b"ping", send.destination)?;
        None
    };
    let mut buffer = [0; 512];
    let (length, came_from) = socket.recv_from(&mut buffer)?;
    let (answered_by, sender) = serde_json::from_slice(&buffer[..length])?;
    Ok(UdpAnswer {
        answered_by,
        sender,
        came_from,
        peer,
    })
}
