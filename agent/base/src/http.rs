//! One loop that accepts HTTP/1 connections, for every server of sidetrack: the control socket, the
//! metrics port and the webhook.
//!
//! Invariants: a server holds no more connections than its limit, and no client waits in the kernel's
//! queue behind those who have them: see [`places`]; a failure to accept never makes the loop spin;
//! every connection has a deadline for the head of each request.

pub mod places;
pub mod turns;

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use axum::Router;
use hyper::{
    Request,
    body::Incoming,
    server::conn::http1,
    service::{Service as _, service_fn},
};
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    server::graceful::{GracefulShutdown, Watcher},
    service::TowerToHyperService,
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, TcpStream, UnixListener, UnixStream},
    time::timeout,
};
use tracing::{debug, warn};

use self::places::{Place, Places};

/// After a failure to accept, such as a lack of descriptors.
const PAUSE: Duration = Duration::from_millis(100);
/// For a head. Those of the API server, of Prometheus and of sidetrack itself have less than 1 KiB.
const MAX_HEAD_BYTES: usize = 8 << 10;
/// How many fields a head may have.
const MAX_HEAD_FIELDS: usize = 64;

/// What one server allows its clients.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// The server's name in the log.
    pub server: &'static str,
    /// Connections at a time, fewer if they hold more than [`places::CONNECTION_BYTES`] each.
    pub connections: usize,
    /// A connection that has waited for its client this long may be dropped for a client that holds as
    /// much or more.
    pub fresh: Duration,
    /// For the head of a request, including the wait for it.
    pub head: Duration,
    /// For a whole connection.
    pub connection: Option<Duration>,
    /// Whether a connection may carry several requests.
    pub keep_alive: bool,
    /// How long the end waits for answers in progress.
    pub shutdown: Duration,
}

impl Limits {
    /// Of a server that answers kubelet's probes. It has few, and programs of the node may ask as well.
    #[must_use]
    pub const fn of_probes(server: &'static str) -> Self {
        Self {
            server,
            connections: 16,
            fresh: Duration::from_millis(50),
            head: Duration::from_secs(2),
            connection: Some(Duration::from_secs(2)),
            keep_alive: false,
            shutdown: Duration::ZERO,
        }
    }
}

/// A socket that accepts connections.
pub trait Listener {
    /// Its connections.
    type Stream: Send + 'static;

    /// The next connection, and its client if that has an address. Cancel safe.
    fn accept(&self) -> impl Future<Output = io::Result<(Self::Stream, Option<IpAddr>)>> + Send;
}

impl Listener for TcpListener {
    type Stream = TcpStream;

    async fn accept(&self) -> io::Result<(TcpStream, Option<IpAddr>)> {
        let (stream, client) = Self::accept(self).await?;
        // Answers are one segment each.
        let _ = stream.set_nodelay(true);
        Ok((stream, Some(client.ip())))
    }
}

impl Listener for UnixListener {
    type Stream = UnixStream;

    async fn accept(&self) -> io::Result<(UnixStream, Option<IpAddr>)> {
        Ok((Self::accept(self).await?.0, None))
    }
}

impl<L: Listener + Send + Sync> Listener for Arc<L> {
    type Stream = L::Stream;

    async fn accept(&self) -> io::Result<(L::Stream, Option<IpAddr>)> {
        L::accept(self).await
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

/// Serves the same routes on every connection, for as long as it is polled.
pub async fn serve_router<L>(listener: L, limits: Limits, router: Router)
where
    L: Listener,
    L::Stream: AsyncRead + AsyncWrite + Unpin,
{
    let prepare = move |stream, _| {
        let router = router.clone();
        async move { Some((stream, router)) }
    };
    serve(listener, limits, prepare, std::future::pending()).await;
}

/// Serves until `stop` completes, then waits for answers in progress to finish.
///
/// `prepare` turns an accepted stream into the stream that carries HTTP and the routes for it: it is
/// where TLS is negotiated. It returns `None` for a connection to drop, and has a deadline of its own.
/// It gets the connection's [`Place`], which requests have as an extension.
pub async fn serve<L, F, S>(
    listener: L,
    limits: Limits,
    prepare: impl Fn(L::Stream, Place) -> F + Clone + Send + Sync + 'static,
    stop: impl Future<Output = ()>,
) where
    L: Listener,
    F: Future<Output = Option<(S, Router)>> + Send + 'static,
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let places = Places::new(limits.connections, limits.fresh);
    let connections = GracefulShutdown::new();
    let mut stop = std::pin::pin!(stop);
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = &mut stop => break,
        };
        let (stream, client) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                warn!(server = limits.server, "accept a connection: {error}");
                tokio::time::sleep(PAUSE).await;
                continue;
            }
        };
        let (places, prepare) = (places.clone(), prepare.clone());
        let watcher = connections.watcher();
        tokio::spawn(async move {
            let Some((place, evicted)) = places.admit(client).await else {
                debug!(
                    server = limits.server,
                    ?client,
                    "refused: the client is at its quota"
                );
                return;
            };
            let whole = async {
                if let Some((stream, router)) = prepare(stream, place.clone()).await {
                    serve_connection(stream, router, limits, place, watcher).await;
                }
            };
            let deadline = async {
                match limits.connection {
                    Some(deadline) => tokio::time::sleep(deadline).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = whole => {}
                () = deadline => {}
                _ = evicted => debug!(server = limits.server, ?client, "dropped for another"),
            }
        });
    }
    drop(listener);
    let _ = timeout(limits.shutdown, connections.shutdown()).await;
}

async fn serve_connection<S>(
    stream: S,
    router: Router,
    limits: Limits,
    place: Place,
    watcher: Watcher,
) where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let routes = TowerToHyperService::new(router);
    let service = service_fn(move |mut request: Request<Incoming>| {
        let place = place.clone();
        place.works();
        request.extensions_mut().insert(place.clone());
        let answer = routes.call(request);
        async move {
            let answer = answer.await;
            place.waits();
            answer
        }
    });
    let connection = http1::Builder::new()
        .keep_alive(limits.keep_alive)
        .max_buf_size(MAX_HEAD_BYTES)
        .max_headers(MAX_HEAD_FIELDS)
        .timer(TokioTimer::new())
        .header_read_timeout(limits.head)
        .serve_connection(TokioIo::new(stream), service);
    if let Err(error) = watcher.watch(connection).await {
        debug!(server = limits.server, "connection: {error}");
    }
}
