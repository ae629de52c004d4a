//! Connections that stay open, with a small message going round on each four times a second, and how
//! late every message is.

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use anyhow::Result;
use parking_lot::Mutex;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    runtime::Handle,
    time::{Instant, sleep_until},
};

use super::{orders, say, serve::bound};
use crate::wire::{Late, Order, Streamed, now};

const SEND_INTERVAL: Duration = Duration::from_millis(250);
/// A message that is late by more than this is reported.
const LATE: Duration = Duration::from_millis(50);
const BACKLOG: i32 = 4096;

/// Sends back what comes, until stdin ends.
pub fn echo(ports: &[u16]) -> Result<()> {
    let runtime = runtime()?;
    let _guard = runtime.enter();
    for port in ports {
        let listener: std::net::TcpListener = bound(*port, false, BACKLOG)?.into();
        listener.set_nonblocking(true)?;
        let listener = TcpListener::from_std(listener)?;
        runtime.spawn(async move {
            while let Ok((accepted, _)) = listener.accept().await {
                tokio::spawn(send_back(accepted));
            }
        });
    }
    say(&"ready")?;
    orders().for_each(drop);
    Ok(())
}

async fn send_back(mut accepted: TcpStream) -> io::Result<()> {
    accepted.set_nodelay(true)?;
    let mut buffer = [0; 64];
    loop {
        let read = accepted.read(&mut buffer).await?;
        if read == 0 {
            return Ok(());
        }
        accepted.write_all(&buffer[..read]).await?;
    }
}

/// Opens so many to one address; every order is answered with what has been seen since the last.
pub fn run(to: SocketAddr, count: u32) -> Result<()> {
    let runtime = runtime()?;
    let seen: Arc<Mutex<Streamed>> = Arc::default();
    let begin = Instant::now() + SEND_INTERVAL;
    for number in 0..count {
        let seen = Arc::clone(&seen);
        let stream = runtime.block_on(TcpStream::connect(to))?;
        stream.set_nodelay(true)?;
        // Spread over the time between two messages.
        let first = begin + SEND_INTERVAL * number / count;
        runtime.spawn(async move {
            if let Err(error) = stream_on(stream, first, &seen).await {
                let mut seen = seen.lock();
                seen.broken.push(error.to_string());
            }
        });
    }
    say(&"ready")?;
    for order in orders() {
        if matches!(order?, Order::End) {
            break;
        }
        let seen = std::mem::take(&mut *seen.lock());
        say(&seen)?;
    }
    Ok(())
}

async fn stream_on(
    mut stream: TcpStream,
    first: Instant,
    seen: &Mutex<Streamed>,
) -> io::Result<()> {
    let mut due = first;
    let mut number = 0_u64;
    loop {
        sleep_until(due).await;
        let bytes = number.to_be_bytes();
        stream.write_all(&bytes).await?;
        let mut back = [0; 8];
        stream.read_exact(&mut back).await?;
        if back != bytes {
            return Err(io::Error::other("another message came back"));
        }
        let late = due.elapsed();
        let mut seen = seen.lock();
        seen.messages += 1;
        seen.worst = seen.worst.max(late);
        if late > LATE {
            seen.late.push(Late {
                by: late,
                until: now(),
            });
        }
        drop(seen);
        number += 1;
        // Those missed by a stall are not made up for.
        due = (due + SEND_INTERVAL).max(Instant::now());
    }
}

/// A runtime that turns on a thread of its own; the others wait for orders.
fn runtime() -> io::Result<Handle> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let handle = runtime.handle().clone();
    std::thread::spawn(move || runtime.block_on(std::future::pending::<()>()));
    Ok(handle)
}
