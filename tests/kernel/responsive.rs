//! What the agent answers while its reconciler does nothing at all.

use std::{
    net::TcpListener,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use lab::{
    agent::{Agent, Extra, held::HeldThread},
    command::run_words,
    network::Lab,
};

/// How long the reconciler is held.
const HOLD: Duration = Duration::from_secs(20);
/// After this long without a turn `/healthz` fails.
const UNHEALTHY_AFTER: Duration = Duration::from_secs(10);
/// The reconciler notices the hold when its turn ends, at most half a second later; the rest is for a
/// busy machine.
const SLACK: Duration = Duration::from_millis(1500);
/// Longest time to an answer.
const ANSWER: f64 = 0.1;

/// An answer and the seconds it took.
#[derive(Debug)]
struct Answer {
    code: u16,
    body: String,
    seconds: f64,
}

/// Sends a request with curl; `options` name the server.
fn request(options: &[&str]) -> Result<Answer> {
    let words = [
        &[
            "curl",
            "-s",
            "-m",
            "5",
            "-w",
            "\n%{http_code} %{time_total}",
        ],
        options,
    ]
    .concat();
    let output = run_words(&words)?;
    let (body, facts) = output
        .trim_end()
        .rsplit_once('\n')
        .context("curl's last line")?;
    let (code, seconds) = facts.split_once(' ').context("code and time")?;
    Ok(Answer {
        code: code.parse()?,
        body: body.to_owned(),
        seconds: seconds.parse()?,
    })
}

/// The fastest of three answers. A machine that is busy delays one of them, an agent that is blocked
/// delays them all.
fn request_quickly(options: &[&str]) -> Result<Answer> {
    let mut best: Option<Answer> = None;
    for _ in 0..3 {
        let answer = request(options)?;
        if best
            .as_ref()
            .is_none_or(|best| answer.seconds < best.seconds)
        {
            best = Some(answer);
        }
    }
    let best = best.context("three answers")?;
    ensure!(best.seconds < ANSWER, "{options:?} took too long: {best:?}");
    Ok(best)
}

kernel_test!(answers_while_the_reconciler_is_held);
fn answers_while_the_reconciler_is_held() -> Result<()> {
    // A port that is free now.
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?.to_string();
    drop(listener);
    let mut lab = Lab::new()?;
    let pod = lab.pod("app", 2)?;
    lab.write_pod("app", &pod, &[])?;
    let agent = Agent::start_with(
        lab.places(),
        &Extra::arguments(&["--metrics-addr", &address]),
    )?;
    agent.places.wait_enrolled("test/app")?;

    let healthz = format!("http://{address}/healthz");
    let metrics = format!("http://{address}/metrics");
    let socket = agent.places.socket.to_string_lossy().into_owned();
    let status = ["--unix-socket", &socket, "http://agent/v1/status"];
    let pods = ["--unix-socket", &socket, "http://agent/v1/pods"];
    ensure!(request(&[&healthz])?.code == 200);

    let hold = HeldThread::hold(agent.pid(), "reconciler")?;
    let held = Instant::now();
    let other = lab.pod("late", 3)?;
    lab.write_pod("late", &other, &[])?;
    let mut unhealthy_at = None;
    while held.elapsed() < HOLD {
        let asked = held.elapsed();
        let health = request_quickly(&[&healthz])?;
        match health.code {
            200 => ensure!(
                asked < UNHEALTHY_AFTER + SLACK,
                "still healthy after {asked:?}"
            ),
            503 => {
                // The last turn may have ended half a second before the hold began.
                ensure!(
                    held.elapsed() + SLACK > UNHEALTHY_AFTER,
                    "unhealthy already: {health:?}"
                );
                ensure!(
                    health.body.contains("not completed a turn for 1")
                        || health.body.contains("not completed a turn for 2"),
                    "{health:?}"
                );
                unhealthy_at.get_or_insert(asked);
            }
            _ => anyhow::bail!("{health:?}"),
        }
        ensure!(request_quickly(&[&metrics])?.code == 200);
        ensure!(request_quickly(&status)?.body.contains("\"ready\":true"));
        ensure!(request_quickly(&pods)?.body.contains("\"app\""));
        thread::sleep(Duration::from_millis(500));
    }
    ensure!(unhealthy_at.is_some(), "/healthz never failed");
    let late = agent.places.pod("test/late")?;
    ensure!(late.is_none(), "the reconciler was not held: {late:?}");

    drop(hold);
    agent.places.wait_enrolled("test/late")?;
    let health = request(&[&healthz])?;
    ensure!(health.code == 200, "{health:?}");
    Ok(())
}
