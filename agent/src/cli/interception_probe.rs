//! `sidetrack interception-probe`: the two containers of a pod that measures whether its node intercepts. Kubelet asks
//! the app, so the pod is ready as long as its connections are intercepted as they should be.

use std::{
    fs, io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    process::ExitCode,
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use axum::{Router, http::StatusCode, routing::get};
use clap::{Args, Subcommand};
use sidetrack_base::{
    duration::interval,
    http::{self, Limits},
    runtime::until_signal,
};
use socket2::SockRef;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    sync::watch,
    time::timeout,
};

use super::output;

/// What is dialed to be redirected: addresses for documentation, which no host has (RFC 5737, RFC 3849).
const DIALED: [SocketAddr; 2] = [
    SocketAddr::new(IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)), 80),
    SocketAddr::new(
        IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1)),
        80,
    ),
];
/// For a connection, and for its answer.
const WAIT: Duration = Duration::from_secs(5);
/// The most that the sidecar answers.
const MAX_ANSWER: u64 = 64;

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  sidetrack interception-probe sidecar
  sidetrack interception-probe app --interval 30s")]
pub(super) struct Options {
    #[command(subcommand)]
    part: Part,
}

#[derive(Debug, Subcommand)]
enum Part {
    /// Stand in for a sidecar: answer each redirected connection with the address that was dialed
    Sidecar {
        /// The port for outbound connections
        #[arg(long, value_name = "PORT", default_value_t = 15001)]
        outbound_port: u16,
        /// The port for inbound connections
        #[arg(long, value_name = "PORT", default_value_t = 15006)]
        inbound_port: u16,
    },
    /// Make a connection that has to be redirected and one that has not, again and again
    App {
        /// The port where kubelet asks for /ready
        #[arg(long, value_name = "PORT", default_value_t = 15020)]
        port: u16,
        /// The time from one look to the next, such as 1m or 10s; after a failure 5s at most
        #[arg(long, value_name = "DURATION", default_value = "1m", value_parser = interval)]
        interval: Duration,
    },
}

pub(super) async fn run(options: Options) -> Result<ExitCode> {
    match options.part {
        Part::Sidecar {
            outbound_port,
            inbound_port,
        } => {
            let [outbound, inbound] = [listen(outbound_port).await?, listen(inbound_port).await?];
            tokio::select! {
                () = answer(&outbound) => {}
                () = answer(&inbound) => {}
                ended = until_signal() => ended?,
            }
        }
        Part::App { port, interval } => {
            let listener = listen(port).await?;
            let (sender, latest) = watch::channel(Err("there was no look yet".to_owned()));
            let ready = move || {
                let latest = latest.borrow().clone();
                async move {
                    match latest {
                        Ok(()) => (StatusCode::OK, "ready\n".to_owned()),
                        Err(why) => (StatusCode::SERVICE_UNAVAILABLE, format!("{why}\n")),
                    }
                }
            };
            let router = Router::new().route("/ready", get(ready));
            // Kubelet asks, and others in the network may.
            let limits = Limits::of_probes("interception probe");
            tokio::select! {
                () = http::serve_router(listener, limits, router) => {}
                () = look(&sender, interval) => {}
                ended = until_signal() => ended?,
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

async fn listen(port: u16) -> Result<TcpListener> {
    let address = SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), port);
    let listening = http::listen(address).await;
    listening.with_context(|| format!("listen on port {port}"))
}

/// Answers connections with the addresses that were dialed, one at a time: those of the app are one in each interval.
async fn answer(listener: &TcpListener) {
    loop {
        let Ok((mut stream, _)) = listener.accept().await else {
            tokio::time::sleep(Duration::from_millis(100)).await;
            continue;
        };
        let dialed = original_destination(&stream);
        let text = dialed.map_or_else(|error| format!("none: {error}"), |it| it.to_string());
        let _ = timeout(WAIT, stream.write_all(text.as_bytes())).await;
    }
}

/// SO_ORIGINAL_DST, as every sidecar asks for it.
fn original_destination(stream: &TcpStream) -> io::Result<SocketAddr> {
    let socket = SockRef::from(stream);
    let found = socket.original_dst_v4();
    let found = found.or_else(|_| socket.original_dst_v6())?;
    found
        .as_socket()
        .ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// Looks again and again, and publishes what comes of it.
async fn look(sender: &watch::Sender<Result<(), String>>, interval: Duration) {
    const AFTER_FAILURE: Duration = Duration::from_secs(5);
    loop {
        let found = check().await.map_err(|error| format!("{error:#}"));
        let pause = match found {
            Ok(()) => interval,
            Err(_) => interval.min(AFTER_FAILURE),
        };
        let is_news = sender.send_if_modified(|latest| {
            let is_news = *latest != found;
            latest.clone_from(&found);
            is_news
        });
        if is_news {
            output::remark(match found {
                Ok(()) => "connections are intercepted".to_owned(),
                Err(why) => why,
            });
        }
        tokio::time::sleep(pause).await;
    }
}

/// Whether one connection is redirected, and another is not.
async fn check() -> Result<()> {
    let dialed = destination()?;
    let connected = timeout(WAIT, TcpStream::connect(dialed)).await;
    let connected = connected.with_context(|| {
        format!(
            "a connection to {dialed} was not redirected: it left the pod, and no host has that address"
        )
    })?;
    let sidecar = connected.with_context(|| {
        format!("a connection to {dialed} was refused, or the network answered")
    })?;
    let answer = timeout(WAIT, read(sidecar)).await;
    let answer = answer
        .with_context(|| format!("the sidecar does not answer a connection to {dialed}"))??;
    ensure!(
        answer == dialed.to_string(),
        "a connection to {dialed} was answered, and SO_ORIGINAL_DST is {answer:?}"
    );
    let loopback: IpAddr = match dialed {
        SocketAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
        SocketAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
    };
    let listener = TcpListener::bind((loopback, 0)).await?;
    let own = listener.local_addr()?;
    let both = async { tokio::try_join!(TcpStream::connect(own), listener.accept()) };
    let reached = timeout(WAIT, both).await;
    let reached = reached.with_context(|| format!("a connection to {own} was redirected"))?;
    reached.with_context(|| format!("a connection to {own} failed"))?;
    Ok(())
}

/// The first destination that the pod has a route to. A connected UDP socket would show it as well, and be counted as
/// one that is not intercepted.
fn destination() -> Result<SocketAddr> {
    let has_route = |to: &SocketAddr| {
        let table = match to {
            SocketAddr::V4(_) => "/proc/net/route",
            SocketAddr::V6(_) => "/proc/net/ipv6_route",
        };
        let routes = fs::read_to_string(table).unwrap_or_default();
        routes.lines().any(|route| is_default(route, to.is_ipv4()))
    };
    let first = DIALED.into_iter().find(has_route);
    first.context("the pod has no default route, so no connection can leave it")
}

/// Whether a line of the kernel's table is a default route. Of IPv6 `lo` has one, which rejects.
fn is_default(route: &str, is_ipv4: bool) -> bool {
    let fields: Vec<&str> = route.split_whitespace().collect();
    let is_zero = |field: &str| field.bytes().all(|it| it == b'0');
    match (is_ipv4, fields.as_slice()) {
        (true, [_, to, _, _, _, _, _, mask, ..]) => is_zero(to) && is_zero(mask),
        (false, [to, length, .., interface]) => {
            is_zero(to) && is_zero(length) && *interface != "lo"
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests;

/// What the sidecar answers.
async fn read(sidecar: TcpStream) -> io::Result<String> {
    let mut answer = String::new();
    sidecar.take(MAX_ANSWER).read_to_string(&mut answer).await?;
    Ok(answer)
}
