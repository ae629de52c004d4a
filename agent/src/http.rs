//! One loop that accepts HTTP/1 connections, for every server of sidetrack: the control socket, the
//! metrics port and the webhook.
//!
//! Invariants: a server holds no more connections than its limit; a failure to accept never makes
//! the loop spin; every connection has a deadline for the head of each request.

use std::{
    io,
    net::{Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use anyhow::Result;
use axum::Router;
use hyper::server::conn::http1;
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    server::graceful::{GracefulShutdown, Watcher},
    service::TowerToHyperService,
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, TcpStream, UnixListener, UnixStream},
    sync::Semaphore,
    time::timeout,
};
use tracing::{debug, warn};

/// After a failure to accept, such as a lack of descriptors.
const PAUSE: Duration = Duration::from_millis(100);

/// What one server allows its clients.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// The server's name in the log.
    pub server: &'static str,
    /// Connections at a time; more wait in the kernel's queue.
    pub connections: usize,
    /// For the head of a request, including the wait for it.
    pub head: Duration,
    /// For a whole connection.
    pub connection: Option<Duration>,
    /// Whether a connection may carry several requests.
    pub keep_alive: bool,
    /// How long the end waits for answers in progress.
    pub shutdown: Duration,
}

/// A socket that accepts connections.
pub trait Listener {
    /// Its connections.
    type Stream: Send + 'static;

    /// The next connection. Cancel safe.
    fn accept(&self) -> impl Future<Output = io::Result<Self::Stream>> + Send;
}

impl Listener for TcpListener {
    type Stream = TcpStream;

    async fn accept(&self) -> io::Result<TcpStream> {
        let (stream, _) = Self::accept(self).await?;
        // Answers are one segment each.
        let _ = stream.set_nodelay(true);
        Ok(stream)
    }
}

impl Listener for UnixListener {
    type Stream = UnixStream;

    async fn accept(&self) -> io::Result<UnixStream> {
        Ok(Self::accept(self).await?.0)
    }
}

/// Listens on a TCP port. A node without IPv6 (`ipv6.disable=1`) gets all IPv4 addresses instead of
/// `[::]`, which is what manifests for all nodes contain.
///
/// # Errors
/// If the address cannot be bound.
pub async fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    match TcpListener::bind(address).await {
        Err(error)
            if error.raw_os_error() == Some(libc::EAFNOSUPPORT)
                && address.ip() == Ipv6Addr::UNSPECIFIED =>
        {
            TcpListener::bind((Ipv4Addr::UNSPECIFIED, address.port())).await
        }
        other => other,
    }
}

/// Serves until `stop` completes, then waits for answers in progress to finish.
///
/// `prepare` turns an accepted stream into the stream that carries HTTP and the routes for it: it is
/// where TLS is negotiated. It returns `None` for a connection to drop, and has a deadline of its own.
///
/// # Errors
/// If the limit on connections is lost.
pub async fn serve<L, F, S>(
    listener: L,
    limits: Limits,
    prepare: impl Fn(L::Stream) -> F,
    stop: impl Future<Output = ()>,
) -> Result<()>
where
    L: Listener,
    F: Future<Output = Option<(S, Router)>> + Send + 'static,
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let places = Arc::new(Semaphore::new(limits.connections));
    let connections = GracefulShutdown::new();
    let mut stop = std::pin::pin!(stop);
    loop {
        let accepted = async {
            let place = Arc::clone(&places).acquire_owned().await?;
            anyhow::Ok((place, listener.accept().await))
        };
        let (place, accepted) = tokio::select! {
            accepted = accepted => accepted?,
            () = &mut stop => break,
        };
        let stream = match accepted {
            Ok(stream) => stream,
            Err(error) => {
                warn!(server = limits.server, "accept a connection: {error}");
                tokio::time::sleep(PAUSE).await;
                continue;
            }
        };
        let prepared = prepare(stream);
        let watcher = connections.watcher();
        tokio::spawn(async move {
            let whole = async {
                if let Some((stream, router)) = prepared.await {
                    serve_connection(stream, router, limits, watcher).await;
                }
            };
            match limits.connection {
                Some(deadline) => drop(timeout(deadline, whole).await),
                None => whole.await,
            }
            drop(place);
        });
    }
    drop(listener);
    let _ = timeout(limits.shutdown, connections.shutdown()).await;
    Ok(())
}

async fn serve_connection<S>(stream: S, router: Router, limits: Limits, watcher: Watcher)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let connection = http1::Builder::new()
        .keep_alive(limits.keep_alive)
        .timer(TokioTimer::new())
        .header_read_timeout(limits.head)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
    if let Err(error) = watcher.watch(connection).await {
        debug!(server = limits.server, "connection: {error}");
    }
}
