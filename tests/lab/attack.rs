//! What hostile clients of any port do, in a thread of its own and until it is dropped.

use std::{
    future::Future,
    net::{IpAddr, Ipv4Addr, SocketAddr},
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
    end: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Attack {
    /// So many clients, each of which does the same again and again.
    pub fn start<F>(clients: usize, act: impl Fn() -> F + Copy + Send + 'static) -> Self
    where
        F: Future<Output = Result<()>> + 'static,
    {
        let (end, ended) = oneshot::channel();
        let thread = std::thread::spawn(move || {
            let runtime = Builder::new_current_thread().enable_all().build();
            let Ok(runtime) = runtime else { return };
            let clients = (0..clients).map(|_| async move {
                loop {
                    // Refused and dropped connections are what an attack expects.
                    let _ = act().await;
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
            end: Some(end),
            thread: Some(thread),
        }
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
    Attack::start(connections, move || async move {
        let mut stream = dial(to, from).await?;
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
