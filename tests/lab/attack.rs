//! What hostile clients of any port do, in a thread of its own and until it is dropped.

use std::{
    future::Future,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    thread::JoinHandle,
    time::Duration,
};

use anyhow::Result;
use tokio::{
    io::AsyncReadExt as _, net::TcpSocket, net::TcpStream, runtime::Builder, sync::oneshot,
    time::sleep,
};

/// Where attacks come from, if from one address.
pub const ATTACKER: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 66));
/// Before a connection that was dropped is opened again.
const PAUSE: Duration = Duration::from_millis(200);

/// An attack that continues, in a thread of its own.
pub struct Attack {
    effects: Effects,
    end: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// How often an attack reached what it attacks: a test without one proves nothing.
#[derive(Clone, Default)]
pub struct Effects(Arc<AtomicUsize>);

impl Effects {
    /// It did once more.
    pub fn count(&self) {
        self.0.fetch_add(1, Relaxed);
    }
}

impl Attack {
    /// So many clients, each of which does the same again and again, and counts its effects.
    pub fn start<F>(clients: usize, act: impl Fn(Effects) -> F + Copy + Send + 'static) -> Self
    where
        F: Future<Output = Result<()>> + 'static,
    {
        let effects = Effects::default();
        let of_clients = effects.clone();
        let (end, ended) = oneshot::channel();
        let thread = std::thread::spawn(move || {
            let runtime = Builder::new_current_thread().enable_all().build();
            let Ok(runtime) = runtime else { return };
            let clients = (0..clients).map(|_| async {
                loop {
                    // Refused and dropped connections are what an attack expects.
                    let _ = act(of_clients.clone()).await;
                    sleep(PAUSE).await;
                }
            });
            let attack = futures_util::future::join_all(clients);
            runtime.block_on(async {
                tokio::select! {
                    _ = ended => {}
                    _ = attack => {}
                }
            });
        });
        Self {
            effects,
            end: Some(end),
            thread: Some(thread),
        }
    }

    /// How many effects it has had.
    pub fn effects(&self) -> usize {
        self.effects.0.load(Relaxed)
    }
}

impl Drop for Attack {
    fn drop(&mut self) {
        drop(self.end.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Connections that say nothing.
pub fn silent(to: SocketAddr, from: Option<IpAddr>, connections: usize) -> Attack {
    Attack::start(connections, move |effects| async move {
        let mut stream = dial(to, from).await?;
        effects.count();
        stream.read_u8().await?;
        Ok(())
    })
}

/// A connection, from this address if one is given.
pub async fn dial(to: SocketAddr, from: Option<IpAddr>) -> Result<TcpStream> {
    let socket = match to {
        SocketAddr::V4(_) => TcpSocket::new_v4()?,
        SocketAddr::V6(_) => TcpSocket::new_v6()?,
    };
    if let Some(from) = from {
        socket.bind((from, 0).into())?;
    }
    Ok(socket.connect(to).await?)
}
