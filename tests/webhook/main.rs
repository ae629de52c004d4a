//! `sidetrack webhook` as the API server meets it: over HTTPS, with certificates that change, with
//! requests that are none, to its end. What it answers to which pod is tested in the agent's crate.

mod attacks;

use std::{
    cell::{Cell, RefCell},
    process::Stdio,
    rc::Rc,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail, ensure};
use axum::{
    body::{Body, Bytes},
    http::{Method, Request, StatusCode, header},
};
use futures_util::stream;
use lab::{
    agent::WAIT_TIMEOUT,
    webhook::{
        certificates::{Authority, Mount, Pair},
        client::{Client, Review, post},
        server::{Server, command},
    },
};
use nix::sys::signal::Signal;
use tokio::{
    io::AsyncReadExt as _,
    net::TcpStream,
    task::LocalSet,
    time::{sleep, timeout},
};

/// How often certificates are replaced under load.
const REPLACEMENTS: usize = 20;
/// How many admissions are to go well meanwhile, at least.
const ADMISSIONS: usize = 2000;

/// A webhook and a client of it.
async fn start(more: &[&str]) -> Result<(Authority, Mount, Server, Client)> {
    let authority = Authority::new()?;
    let mount = Mount::new(&authority.pair()?)?;
    let server = Server::start(&mount, more).await?;
    let client = Client::new(&authority, server.address)?;
    Ok((authority, mount, server, client))
}

/// Waits until new connections get this certificate.
async fn served(client: &Client, pair: &Pair) -> Result<()> {
    let start = Instant::now();
    while client.connect().await?.certificate != pair.der {
        ensure!(
            start.elapsed() < WAIT_TIMEOUT,
            "the old certificate is served"
        );
        sleep(Duration::from_millis(20)).await;
    }
    Ok(())
}

/// What the clients have met.
#[derive(Default)]
struct Tally {
    admitted: Cell<usize>,
    connected: Cell<usize>,
    failed: RefCell<Vec<String>>,
    over: Cell<bool>,
}

impl Tally {
    /// Sends requests until it is over, so many on each connection.
    async fn send(&self, client: Client, per_connection: usize) {
        while !self.over.get() {
            if let Err(error) = self.send_on_one(&client, per_connection).await {
                self.failed.borrow_mut().push(format!("{error:#}"));
            }
        }
    }

    async fn send_on_one(&self, client: &Client, times: usize) -> Result<()> {
        let mut connection = client.connect().await.context("connect")?;
        self.connected.set(self.connected.get() + 1);
        for _ in 0..times {
            if self.over.get() {
                break;
            }
            let review = Review::new(self.admitted.get())?;
            connection.admit(&review).await?;
            self.admitted.set(self.admitted.get() + 1);
        }
        Ok(())
    }
}

#[tokio::test]
async fn certificates_are_replaced_under_load() -> Result<()> {
    let (authority, mut mount, _server, client) = start(&[]).await?;
    let tally = Rc::new(Tally::default());
    let start = Instant::now();
    let clients = LocalSet::new();
    for per_connection in [usize::MAX, usize::MAX, usize::MAX, 100, 1, 1] {
        let (tally, client) = (Rc::clone(&tally), client.clone());
        clients.spawn_local(async move { tally.send(client, per_connection).await });
    }
    let replaced = clients.run_until(async {
        for time in 0..REPLACEMENTS {
            let pair = authority.pair()?;
            if time % 2 == 0 {
                mount.swap(&pair)?;
            } else {
                mount.overwrite(&pair).await?;
            }
            served(&client, &pair).await?;
        }
        while tally.admitted.get() < ADMISSIONS && tally.failed.borrow().is_empty() {
            sleep(Duration::from_millis(20)).await;
        }
        anyhow::Ok(())
    });
    replaced.await?;
    tally.over.set(true);
    clients.await;
    let (admitted, seconds) = (tally.admitted.get(), start.elapsed().as_secs_f64());
    println!(
        "{admitted} admissions on {} connections in {seconds:.1} s, {:.0} a second; {REPLACEMENTS} certificates",
        tally.connected.get(),
        admitted as f64 / seconds,
    );
    assert_eq!(*tally.failed.borrow(), [""; 0]);
    Ok(())
}

#[tokio::test]
async fn a_pair_that_cannot_be_used_changes_nothing() -> Result<()> {
    let (authority, mut mount, mut server, client) = start(&[]).await?;
    let first = authority.pair()?;
    mount.swap(&first)?;
    served(&client, &first).await?;
    let cert = mount.cert().display().to_string();
    let key = mount.key().display().to_string();
    let [one, other] = [authority.pair()?, authority.pair()?];
    let with = |cert: &str, key: &str| Pair {
        cert: cert.to_owned(),
        key: key.to_owned(),
        der: Vec::new(),
    };
    for (broken, expected) in [
        (
            with(&one.cert, &other.key),
            format!("use {cert} with {key}"),
        ),
        (
            with("", &one.key),
            format!("{cert}: there is no certificate"),
        ),
        (
            with(&one.cert, "nonsense"),
            format!("{key}: not a private key"),
        ),
        (
            with(&one.key, &one.cert),
            format!("{cert}: there is no certificate"),
        ),
    ] {
        mount.swap(&broken)?;
        server.wait_logged(&expected).await?;
        let mut connection = client.connect().await?;
        assert!(connection.certificate == first.der, "{expected}");
        connection.admit(&Review::new(0)?).await?;
    }
    std::fs::remove_file(mount.path().join("..data"))?;
    server
        .wait_logged(&format!("{cert}: read the file"))
        .await?;
    assert!(client.connect().await?.certificate == first.der);
    mount.swap(&one)?;
    served(&client, &one).await
}

/// Kubelet's probes do not verify it, so that only the webhook itself can say so.
#[tokio::test]
async fn with_an_expired_certificate_it_is_not_ready() -> Result<()> {
    let (authority, mut mount, mut server, client) = start(&[]).await?;
    let mut connection = client.connect().await?;
    let mut ready = async || -> Result<(u16, String)> {
        let request = Request::get("/readyz").header("host", "webhook");
        let answer = connection.send(request.body(Body::empty())?).await?;
        let text = String::from_utf8(answer.body.to_vec())?;
        Ok((answer.status.as_u16(), text))
    };
    assert_eq!(ready().await?, (200, "ok\n".to_owned()));
    mount.swap(&authority.pair_until(2001)?)?;
    server.wait_logged("tls.crt has expired").await?;
    let (status, text) = ready().await?;
    assert!(status == 503 && text.contains("has expired"), "{text}");
    mount.swap(&authority.pair()?)?;
    let again = async {
        while ready().await?.0 != 200 {
            sleep(Duration::from_millis(50)).await;
        }
        anyhow::Ok(())
    };
    timeout(WAIT_TIMEOUT, again).await?
}

const MIB: usize = 1 << 20;

/// A body of so many MiB, one after the other.
fn pieces(mib: usize) -> Body {
    let piece = || Ok::<_, std::io::Error>(Bytes::from(vec![b' '; MIB]));
    Body::from_stream(stream::iter((0..mib).map(move |_| piece())))
}

/// Requests that are no question, the status each gets, and what the answer mentions.
fn bad_requests() -> Result<Vec<(Request<Body>, u16, &'static str)>> {
    let request = |method: Method, path: &str, kind: &str| {
        Request::builder()
            .method(method)
            .uri(path)
            .header(header::CONTENT_TYPE, kind)
            .body(Body::from("{}"))
    };
    let json = "application/json";
    Ok(vec![
        (
            request(Method::GET, "/mutate", json)?,
            405,
            "POST to /mutate",
        ),
        (
            request(Method::POST, "/healthz", json)?,
            405,
            "GET the others",
        ),
        (
            request(Method::POST, "/", json)?,
            404,
            "AdmissionReview to /mutate",
        ),
        (
            request(Method::POST, "/mutate/disabled", json)?,
            404,
            "to /mutate",
        ),
        (
            request(Method::POST, "/mutate", "text/plain")?,
            415,
            "must be application/json",
        ),
        (
            request(Method::POST, "/mutate", "")?,
            415,
            "must be application/json",
        ),
        (request(Method::POST, "/mutate", json)?, 400, "kind is \"\""),
        (post("/mutate", "")?, 400, "not an AdmissionReview"),
        (
            post("/mutate", vec![0xff; 100])?,
            400,
            "not an AdmissionReview",
        ),
        (
            post("/mutate", "[".repeat(3_000_000))?,
            400,
            "not made of objects",
        ),
        (
            post("/mutate", "{\"a\":".repeat(600_000))?,
            400,
            "opening braces",
        ),
        (post("/mutate", pieces(3))?, 400, "not an AdmissionReview"),
        (
            post("/mutate", vec![b' '; 3 * MIB + 1])?,
            413,
            "more than 3 MiB",
        ),
        (post("/mutate", pieces(4))?, 413, "more than 3 MiB"),
    ])
}

#[tokio::test]
async fn what_is_no_question_gets_a_clear_answer() -> Result<()> {
    let (_authority, _mount, _server, client) = start(&[]).await?;
    let review = Review::new(0)?;
    for (request, status, expected) in bad_requests()? {
        let line = format!("{} {}", request.method(), request.uri());
        let answer = client.send(request).await.context(line.clone())?;
        let text = String::from_utf8_lossy(&answer.body);
        assert_eq!(answer.status, status, "{line}: {text}");
        assert!(text.contains(expected), "{line}: {text}");
        assert!(text.len() < 1000, "{line}: {text}");
    }
    // A body without an end is not read to its end, however that looks to its sender.
    let _ = client.send(post("/mutate", pieces(64))?).await;
    // None of them has harmed the webhook.
    let get = |path: &str| Request::get(path).body(Body::empty());
    for path in ["/healthz", "/readyz"] {
        assert_eq!(client.send(get(path)?).await?.status, StatusCode::OK);
    }
    client.connect().await?.admit(&review).await
}

/// Long bodies that never arrive delay only one another.
#[tokio::test]
async fn a_body_that_does_not_come_is_not_waited_for() -> Result<()> {
    let (_authority, _mount, _server, client) = start(&[]).await?;
    let mut stuck = Vec::new();
    for _ in 0..20 {
        let never = Body::from_stream(stream::pending::<Result<Bytes, std::io::Error>>());
        let (request, client) = (post("/mutate", never)?, client.clone());
        stuck.push(tokio::spawn(async move { client.send(request).await }));
    }
    sleep(Duration::from_millis(500)).await;
    let mut connection = client.connect().await?;
    timeout(Duration::from_secs(2), connection.admit(&Review::new(0)?)).await??;
    let answer = stuck.swap_remove(0).await??;
    assert_eq!(answer.status, StatusCode::REQUEST_TIMEOUT);
    for other in stuck {
        other.abort();
    }
    Ok(())
}

#[tokio::test]
async fn who_says_nothing_is_not_waited_for() -> Result<()> {
    let (_authority, _mount, server, client) = start(&[]).await?;
    let mut silent = TcpStream::connect(server.address).await?;
    client.connect().await?.admit(&Review::new(0)?).await?;
    let read = timeout(Duration::from_secs(10), silent.read(&mut [0])).await;
    assert!(matches!(read, Ok(Ok(0) | Err(_))), "still connected");
    Ok(())
}

#[tokio::test]
async fn what_is_on_its_way_is_answered_at_the_end() -> Result<()> {
    let (_authority, _mount, mut server, client) = start(&["--drain", "1"]).await?;
    let mut open = client.connect().await?;
    open.admit(&Review::new(0)?).await?;
    // A request of which half is sent when the end comes, and the rest when no new connection is
    // accepted any more.
    let slow = Review::new(1)?;
    let (parts, body) = slow.request()?.into_parts();
    let body = http_body_util::BodyExt::collect(body).await?.to_bytes();
    let halves = [body.slice(..body.len() / 2), body.slice(body.len() / 2..)];
    let body = stream::unfold((0, halves), |(next, halves)| async move {
        let half = halves.get(next)?.clone();
        if next > 0 {
            sleep(Duration::from_millis(2500)).await;
        }
        Some((Ok::<_, std::io::Error>(half), (next + 1, halves)))
    });
    let request = Request::from_parts(parts, Body::from_stream(body));
    let other = client.clone();
    let answer = tokio::spawn(async move { other.send(request).await });
    sleep(Duration::from_millis(300)).await;
    server.signal(Signal::SIGTERM)?;
    server.wait_logged("ending").await?;
    // The API server has not seen this yet.
    let review = Review::new(2)?;
    let last = open.send(review.request()?).await?;
    review.check(&last)?;
    assert_eq!(last.headers[header::CONNECTION], "close");
    client.connect().await?.admit(&review).await?;
    let ready = client
        .send(Request::get("/readyz").body(Body::empty())?)
        .await?;
    assert_eq!(ready.status, StatusCode::SERVICE_UNAVAILABLE);
    slow.check(&answer.await??)?;
    let status = server.ended().await?;
    assert!(status.success(), "{status}");
    assert!(client.connect().await.is_err());
    Ok(())
}

#[tokio::test]
async fn a_start_without_certificate_fails_and_says_so() -> Result<()> {
    let authority = Authority::new()?;
    let mut mount = Mount::new(&authority.pair()?)?;
    mount.swap(&Pair {
        key: authority.pair()?.key,
        ..authority.pair()?
    })?;
    let run = |mount: &Mount, more: &[&str]| {
        let output = command(mount, more)?.stdout(Stdio::null()).output()?;
        anyhow::Ok((output.status.code(), String::from_utf8(output.stderr)?))
    };
    let (code, text) = run(&mount, &[])?;
    assert_eq!(code, Some(1), "{text}");
    assert!(
        text.contains(&format!("with {}", mount.key().display())),
        "{text}"
    );
    std::fs::remove_file(mount.cert())?;
    let (code, text) = run(&mount, &[])?;
    assert_eq!(code, Some(1), "{text}");
    assert!(
        text.contains(&format!("{}: read the file", mount.cert().display())),
        "{text}"
    );
    let (code, text) = run(&mount, &["--default", "proxyUid=envoy"])?;
    assert_eq!(code, Some(2), "{text}");
    assert!(text.contains("proxyUid"), "{text}");
    if run(&mount, &["--drain", "soon"])?.0 != Some(2) {
        bail!("wrong usage");
    }
    Ok(())
}
