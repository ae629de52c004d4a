//! What others notice of an attack.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use anyhow::{Result, anyhow, ensure};
use lab::{
    agent::Places,
    node::VIP,
    protocol::{APP, Dial},
};

use crate::{
    report::{Seen, mebibytes, millis},
    world::{LIMIT, SHOP, World},
};

/// A healthy pod is enrolled in less than this.
const ENROLLED_WITHIN: Duration = Duration::from_secs(2);
/// The liveness probe answers in less than this. Kubelet waits a second.
const HEALTHY_WITHIN: Duration = Duration::from_secs(1);
/// Of its memory limit the agent keeps a quarter free.
const MAX_MEMORY: u64 = LIMIT / 4 * 3;
/// For this time the others are watched.
const WATCHED: Duration = Duration::from_secs(4);
/// Between two requests.
const PAUSE: Duration = Duration::from_millis(20);
/// Between two probes.
const PROBE_INTERVAL: Duration = Duration::from_millis(200);
/// The port that the outside listens on.
const PORT: u16 = 80;

/// Observes the others during an attack.
pub fn observe(world: &mut World, name: &str) -> Result<Seen> {
    let pid = world.agent()?.pid();
    let health = Health::ask(world.places().clone());
    let enrolled = newcomer(world, name);
    let connects = connect(world);
    let longest = health.end();
    let memory = world.take_peak()?;
    ensure!(world.agent()?.pid() == pid, "the agent was replaced");
    let (enrolled, connects, longest) = (enrolled?, connects?, longest?);
    let seen = vec![
        format!("a new pod after {}", millis(enrolled)),
        format!("{connects} connects of a healthy pod redirected"),
        format!("liveness probe in {} at most", millis(longest)),
        format!("{} of memory", mebibytes(memory)),
    ];
    let text = seen.join(", ");
    ensure!(enrolled < ENROLLED_WITHIN, "{text}");
    ensure!(longest < HEALTHY_WITHIN, "{text}");
    ensure!(memory < MAX_MEMORY, "{text}");
    Ok(seen)
}

/// How long it takes until a new healthy pod is enrolled.
fn newcomer(world: &mut World, attack: &str) -> Result<Duration> {
    let name: String = attack
        .chars()
        .map(|it| if it.is_ascii_alphanumeric() { it } else { '-' })
        .collect();
    let start = Instant::now();
    world.idle_pod(SHOP, &name, |_| {})?;
    let full = format!("{SHOP}/{name}");
    let places = world.places().clone();
    loop {
        let row = places.pod(&full);
        if matches!(&row, Ok(Some(row)) if row["state"] == "enrolled") {
            let took = start.elapsed();
            world.remove_pods(SHOP)?;
            return Ok(took);
        }
        ensure!(
            start.elapsed() < 10 * ENROLLED_WITHIN,
            "a new pod is not enrolled: {row:?}"
        );
        thread::sleep(Duration::from_millis(10));
    }
}

/// Connects of the healthy pod, each of which has to reach its sidecar.
fn connect(world: &World) -> Result<usize> {
    let start = Instant::now();
    let destination = SocketAddr::new(VIP.parse()?, PORT);
    let mut count = 0;
    while start.elapsed() < WATCHED {
        let connected = world.client.dial(Dial::new(&APP, destination))?;
        let accepted =
            connected.map_err(|errno| anyhow!("errno {errno} after {count} connects"))?;
        ensure!(
            accepted.accepted_by == 15001,
            "a connect reached port {}",
            accepted.accepted_by
        );
        count += 1;
        thread::sleep(PAUSE);
    }
    Ok(count)
}

/// Runs the liveness probe again and again, as kubelet does.
struct Health {
    done: Arc<AtomicBool>,
    asking: JoinHandle<Result<Duration>>,
}

impl Health {
    fn ask(places: Places) -> Self {
        let done = Arc::new(AtomicBool::new(false));
        let until = Arc::clone(&done);
        let asking = thread::spawn(move || {
            let mut longest = Duration::ZERO;
            while !until.load(Ordering::Relaxed) {
                longest = longest.max(once(&places)?);
                thread::sleep(PROBE_INTERVAL);
            }
            Ok(longest)
        });
        Self { done, asking }
    }

    fn end(self) -> Result<Duration> {
        self.done.store(true, Ordering::Relaxed);
        let asked = self.asking.join();
        asked.map_err(|_| anyhow!("the thread that asks for health panicked"))?
    }
}

fn once(places: &Places) -> Result<Duration> {
    let start = Instant::now();
    let output = places.output(&["probe", "live"])?;
    ensure!(
        output.status.success(),
        "the liveness probe failed: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(start.elapsed())
}
