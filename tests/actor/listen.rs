//! Listeners that send how they see each connection, then echo.

use std::{
    io::{self, Read as _, Write as _},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

use anyhow::{Context as _, Result};
use lab::protocol::{Listen, REREAD_NAMES};
use socket2::{Domain, Protocol, Socket, Type};

use crate::{identity::run_as, names, visit};

/// How long an accept waits before it looks whether it is to stop.
const LOOK_INTERVAL: Duration = Duration::from_millis(20);

/// Listener groups by id.
#[derive(Default)]
pub struct Groups {
    groups: Vec<Vec<Running>>,
}

/// A listening socket and the thread that serves it.
struct Running {
    stop: Arc<AtomicBool>,
    thread: Option<thread::JoinHandle<()>>,
}

impl Groups {
    /// Opens a group and starts to serve it.
    pub fn open(&mut self, listen: &Listen) -> Result<usize> {
        let failed = || format!("listen on {}", listen.address);
        let domain = Domain::for_address(listen.address);
        let protocol = match listen.mptcp {
            true => Protocol::from(libc::IPPROTO_MPTCP),
            false => Protocol::TCP,
        };
        let sockets = run_as(&listen.owner, || {
            (0..listen.sockets)
                .map(|_| visit::make(|| Socket::new(domain, Type::STREAM, Some(protocol))))
                .collect::<io::Result<Vec<_>>>()
        })?
        .with_context(failed)?;
        if listen.transparent {
            // The owner has no right to.
            for socket in &sockets {
                names::set_transparent(socket, domain).with_context(failed)?;
            }
        }
        let bound = || sockets.iter().try_for_each(|socket| bind(socket, listen));
        run_as(&listen.owner, bound)?.with_context(failed)?;
        self.groups.push(
            sockets
                .into_iter()
                .map(|socket| serve(socket, listen))
                .collect(),
        );
        Ok(self.groups.len() - 1)
    }

    /// Closes one socket of a group.
    pub fn close(&mut self, id: usize, socket: usize) -> Result<()> {
        let running = self
            .groups
            .get_mut(id)
            .and_then(|group| group.get_mut(socket))
            .context("no such listener")?;
        running.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = running.thread.take() {
            thread.join().ok();
        }
        Ok(())
    }
}

fn bind(socket: &Socket, listen: &Listen) -> io::Result<()> {
    const BACKLOG: i32 = 128;
    socket.set_reuse_address(true)?;
    if listen.sockets > 1 {
        socket.set_reuse_port(true)?;
    }
    if listen.address.is_ipv6() {
        socket.set_only_v6(listen.v6_only)?;
    }
    socket.bind(&listen.address.into())?;
    socket.listen(BACKLOG)?;
    socket.set_read_timeout(Some(LOOK_INTERVAL))
}

/// Accepts as the listener's owner, to whom accepted sockets then belong.
fn serve(socket: Socket, listen: &Listen) -> Running {
    let stop = Arc::new(AtomicBool::new(false));
    let stopped = Arc::clone(&stop);
    let (owner, port) = (listen.owner.clone(), listen.address.port());
    let thread = thread::spawn(move || {
        let _ = run_as(&owner, || {
            while !stopped.load(Ordering::Relaxed) {
                if let Ok((accepted, _)) = socket.accept() {
                    thread::spawn(move || {
                        let _ = greet(accepted, port);
                    });
                }
            }
        });
    });
    Running {
        stop,
        thread: Some(thread),
    }
}

/// Sends how this end sees the connection, then echoes.
fn greet(mut accepted: Socket, port: u16) -> io::Result<()> {
    accepted.set_read_timeout(None)?;
    tell_names(&mut accepted, port)?;
    let mut buffer = [0; 64];
    loop {
        let read = accepted.read(&mut buffer)?;
        if read == 0 {
            return Ok(());
        }
        if &buffer[..read] == REREAD_NAMES {
            tell_names(&mut accepted, port)?;
            continue;
        }
        accepted.write_all(&buffer[..read])?;
    }
}

fn tell_names(accepted: &mut Socket, port: u16) -> io::Result<()> {
    let mut text = serde_json::to_string(&(port, names::of(accepted)?))?;
    text.push('\n');
    accepted.write_all(text.as_bytes())
}
