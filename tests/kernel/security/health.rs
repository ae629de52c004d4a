//! `/healthz` while something else happens.

use std::{
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use anyhow::{Result, anyhow, ensure};
use lab::agent::{Agent, Extra};
use nix::sys::signal::Signal;

use crate::fixture::PodFixture;

/// The median answer takes less than this. One alone may wait for a processor on a busy machine.
const ANSWER: Duration = Duration::from_millis(100);
/// Between two requests.
const PAUSE: Duration = Duration::from_millis(20);

/// Asks again and again.
pub struct Health {
    done: Arc<AtomicBool>,
    asking: JoinHandle<Result<Vec<Duration>>>,
}

impl Health {
    /// Restarts the fixture's agent with a port for `/healthz`, and asks it until the end.
    pub fn watch(fixture: &mut PodFixture) -> Result<Self> {
        // A port that is free now.
        let address = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
        let text = address.to_string();
        fixture.agent.end(Signal::SIGTERM)?;
        fixture.agent = Agent::start_with(
            fixture.lab.places(),
            &Extra::arguments(&["--metrics-addr", &text]),
        )?;
        Ok(Self::ask(address))
    }

    /// Asks an agent that serves it at this address until the end.
    pub fn ask(address: SocketAddr) -> Self {
        let done = Arc::new(AtomicBool::new(false));
        let until = Arc::clone(&done);
        let asking = thread::spawn(move || {
            let mut answers = Vec::new();
            while !until.load(Ordering::Relaxed) {
                answers.push(ask(address)?);
                thread::sleep(PAUSE);
            }
            Ok(answers)
        });
        Self { done, asking }
    }

    /// How long answers took: the median and the longest. All said that the agent is healthy.
    pub fn end(self) -> Result<[Duration; 2]> {
        self.done.store(true, Ordering::Relaxed);
        let asked = self.asking.join();
        let mut answers = asked.map_err(|_| anyhow!("the asking thread panicked"))??;
        answers.sort_unstable();
        let median = answers[answers.len() / 2];
        let longest = answers[answers.len() - 1];
        ensure!(median < ANSWER, "median {median:?}, longest {longest:?}");
        Ok([median, longest])
    }
}

fn ask(address: SocketAddr) -> Result<Duration> {
    let start = Instant::now();
    let mut stream = TcpStream::connect(address)?;
    stream.write_all(b"GET /healthz HTTP/1.1\r\nHost: agent\r\nConnection: close\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    ensure!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    Ok(start.elapsed())
}
