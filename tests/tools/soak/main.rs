//! Chaos: pods are dialed from all sides while agents are killed and replaced, policies change,
//! sidecars restart and pods come and go. Every connection is accounted for.

mod account;
mod chaos;
mod environment;
mod hangs;
mod helpers;
mod inventory;
mod report;
mod streams;
mod targets;
mod timeline;
mod wire;
mod worker;

use std::{
    path::PathBuf,
    process::{Command, ExitCode},
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use clap::Parser;
use fastrand::Rng;
use lab::{agent::binary, command::output, ledger, private};

use crate::{
    chaos::{Agents, Builds, Events, Floods},
    environment::{Environment, HANGING},
    inventory::Inventory,
    targets::Policy,
};

/// Kills, upgrades, changes and restarts everything under traffic, and accounts for every connection.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask soak")]
struct Options {
    /// How long [default: 10; 1 with --streams]
    #[arg(long, value_parser = minutes)]
    minutes: Option<f64>,
    /// Instead, hold so many connections open while agents are replaced, and look for stalls
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(10..=10_000))]
    streams: Option<u32>,
    /// Accelerate the pods' connections to their sidecars
    #[arg(long)]
    accelerate: bool,
    /// Makes the same choices as the run that printed it; when they take effect is up to the machine
    #[arg(long)]
    seed: Option<u64>,
    /// A second build of sidetrack, for upgrades from one to the other [default: the same again]
    #[arg(long, value_name = "PATH")]
    other: Option<PathBuf>,
}

fn minutes(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(minutes) if (0.05..=1440.0).contains(&minutes) => Ok(minutes),
        _ => Err("write a number of minutes from 0.05 to 1440".to_owned()),
    }
}

/// At least so much in a minute; less would be no chaos.
const CONNECTIONS: f64 = 20_000.0;
const ENDED: f64 = 5.0;
const REPLACED: f64 = 2.0;
/// A policy's rows go a second after its last pod, what remains of ended pods is looked for twice a second.
const SETTLE: Duration = Duration::from_secs(4);
/// The longest that the last agent may need for it on a busy machine, above that.
const CLEARED_UP: Duration = Duration::from_secs(10);
/// Threads that make pods come and go.
const SHORT_LIVED_PODS: u16 = 2;
const PROGRESS: Duration = Duration::from_secs(10);

fn main() -> ExitCode {
    if let Some(outcome) = worker::run_if_worker() {
        return outcome;
    }
    match run(&Options::parse()) {
        Ok(outcome) => outcome,
        Err(error) => {
            eprintln!("soak: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(options: &Options) -> Result<ExitCode> {
    private::require_root()?;
    private::enter()?;
    ledger::sweep()?;
    let own = binary()?;
    let other = options.other.clone().unwrap_or_else(|| own.clone());
    ensure!(other.is_file(), "{} is no program", other.display());
    let binaries = [own, other];
    for binary in &binaries {
        let version = Command::new(binary).arg("--version").output();
        let version = version.with_context(|| format!("run {}", binary.display()))?;
        let version = String::from_utf8_lossy(&version.stdout).trim().to_owned();
        println!("{version}: {}", binary.display());
    }
    let builds = Builds {
        binaries,
        accelerate: options.accelerate,
    };
    let (passed, failed, failures) = match options.streams {
        Some(count) => {
            let minutes = options.minutes.unwrap_or(1.0);
            let each = Duration::from_secs_f64(60.0 * minutes / 2.0);
            let (passed, failures) = streams::run(count, &builds, each)?;
            (passed, failures.len() as u64, failures)
        }
        None => {
            let minutes = options.minutes.unwrap_or(10.0);
            let seed = options.seed.unwrap_or_else(|| fastrand::u64(..1 << 32));
            println!("seed {seed}, {minutes} minutes\n");
            whole(seed, &builds, Duration::from_secs_f64(60.0 * minutes))?
        }
    };
    for failure in &failures {
        println!("\nFAILED {failure}");
    }
    println!("\n{passed} passed, {failed} failed");
    Ok(if failed == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// Builds, soaks, and looks at what remains; what passed, what failed, and the first failures in full.
fn whole(seed: u64, builds: &Builds, length: Duration) -> Result<(u64, u64, Vec<String>)> {
    let mut environment = Environment::new(seed)?;
    let account = &environment.account;
    account
        .is_accelerated
        .store(builds.accelerate, Ordering::Relaxed);
    let mut checks = soak(&mut environment, builds, length)?;
    let (_, connections) = environment.account.totals();
    let (mut failed, mut failures) = environment.account.failures();
    let cgroup = environment.places.cgroup.clone();
    drop(environment);
    checks += 1;
    if cgroup.exists() {
        failed += 1;
        failures.push(format!("{} remains", cgroup.display()));
    }
    let passed = (connections + checks).saturating_sub(failed);
    Ok((passed, failed, failures))
}

/// Everything up to the tables; how many things were checked beside the connections.
fn soak(environment: &mut Environment, builds: &Builds, length: Duration) -> Result<u64> {
    let first = chaos::start(&environment.places, builds, 0)?;
    for number in (0..environment.pods.len() as u16).chain([HANGING]) {
        environment.wait_policy(&format!("pod{number}"), Policy::FIRST)?;
    }
    thread::sleep(SETTLE);
    let start = Inventory::take(&environment.places, first.pid())?;
    environment.begin()?;

    let (agents, events, floods) = (Agents::default(), Events::default(), Floods::default());
    let over = AtomicBool::new(false);
    // The last agent lives through a part of it: what it leaks is seen.
    let calm_at = length
        .mul_f64(0.9)
        .min(length.saturating_sub(Duration::from_secs(5)));
    let large: &[Duration] = &[length / 3, length * 3 / 4];
    let large = if length < Duration::from_secs(30) {
        &[]
    } else {
        large
    };
    let inventories = thread::scope(|scope| -> Result<_> {
        let shared = &*environment;
        let mut seeds = Rng::with_seed(shared.seed);
        let (agents, events, floods, over) = (&agents, &events, &floods, &over);
        let agents_thread = spawn(scope, shared, "agents", seeds.fork(), move |rng| {
            let is_over = || over.load(Ordering::Relaxed);
            agents.run(shared, first, builds, rng, &is_over)
        });
        let mut threads = vec![
            spawn(scope, shared, "policies", seeds.fork(), move |rng| {
                chaos::flip_policies(shared, events, rng)
            }),
            spawn(scope, shared, "sidecars", seeds.fork(), move |rng| {
                chaos::restart_sidecars(shared, events, rng)
            }),
            spawn(scope, shared, "listeners", seeds.fork(), move |rng| {
                chaos::shrink_listeners(shared, events, rng)
            }),
            spawn(scope, shared, "floods", seeds.fork(), move |rng| {
                floods.run(shared, rng, large)
            }),
        ];
        for part in 0..SHORT_LIVED_PODS {
            threads.push(spawn(scope, shared, "pods", seeds.fork(), move |rng| {
                chaos::come_and_go(shared, events, rng, (part, SHORT_LIVED_PODS))
            }));
        }

        watch(shared, length, calm_at, |elapsed| {
            let (_, connections) = shared.account.totals();
            let (failed, _) = shared.account.failures();
            report::progress(elapsed, connections, failed, agents, events);
        });
        shared.stop.store(true, Ordering::Relaxed);
        for thread in threads {
            let _ = thread.join();
        }
        shared.end_dialing()?;
        thread::sleep(SETTLE);
        let end = last_inventory(shared, agents, &start, || agents_thread.is_finished());
        over.store(true, Ordering::Relaxed);
        let _ = agents_thread.join();
        end
    });

    report::events(&agents, &events, &floods);
    let (totals, connections) = environment.account.totals();
    report::connections(&totals, environment.account.over_v6());
    report::hung(&environment.account.hung());
    let mut checks = compare_inventories(environment, &start, inventories);
    let minutes = length.as_secs_f64() / 60.0;
    checks += check_least(environment, connections, &agents, minutes);
    checks += 1;
    if let Err(error) = leave_nothing(environment) {
        environment.account.fail(format!("{error:#}"));
    }
    Ok(checks)
}

/// Waits until the time is over, and reports progress.
fn watch(
    environment: &Environment,
    length: Duration,
    calm_at: Duration,
    report: impl Fn(Duration),
) {
    let begun = Instant::now();
    let mut reported = Duration::ZERO;
    while begun.elapsed() < length {
        thread::sleep(Duration::from_millis(100));
        let is_calm = begun.elapsed() >= calm_at;
        environment.calm.store(is_calm, Ordering::Relaxed);
        if begun.elapsed() >= reported + PROGRESS {
            reported = begun.elapsed();
            report(reported);
        }
    }
}

/// Waits for the last agent, and counts what there is once it has cleared up.
fn last_inventory(
    environment: &Environment,
    agents: &Agents,
    start: &Inventory,
    is_over: impl Fn() -> bool,
) -> Result<Inventory> {
    let survivor = loop {
        match agents.survivor() {
            Some(survivor) => break survivor,
            None if is_over() => return Err(anyhow::anyhow!("no agent remains")),
            None => thread::sleep(Duration::from_millis(20)),
        }
    };
    let deadline = Instant::now() + CLEARED_UP;
    loop {
        let end = Inventory::take(&environment.places, survivor)?;
        if start.differences(&end).is_empty() || Instant::now() > deadline {
            return Ok(end);
        }
    }
}

/// What the kernel and the agent hold at the end must be what they held at the start; how many things
/// were compared.
fn compare_inventories(
    environment: &Environment,
    start: &Inventory,
    end: Result<Inventory>,
) -> u64 {
    match end {
        Ok(end) => {
            report::inventory(start, &end);
            for difference in start.differences(&end) {
                let log = chaos::tail(&environment.places);
                let text = format!("{difference}; the end of the agents' log:\n{log}");
                environment.account.fail(text);
            }
            start.0.len() as u64
        }
        Err(error) => {
            environment.account.fail(format!("{error:#}"));
            0
        }
    }
}

/// A soak in which too little happened shows nothing; how many things were checked.
fn check_least(environment: &Environment, connections: u64, agents: &Agents, minutes: f64) -> u64 {
    let counts = [
        ("connections", connections, CONNECTIONS),
        ("agents ended", agents.ended(), ENDED),
        (
            "program replacements",
            agents.replaced.load(Ordering::Relaxed),
            REPLACED,
        ),
    ];
    for (what, count, least) in counts {
        if (count as f64) < (least * minutes).floor() {
            environment.account.fail(format!(
                "only {count} {what}: {:.0} are the least",
                least * minutes
            ));
        }
    }
    // About half, by the targets that there are; some take longer than others.
    let over_v6 = environment.account.over_v6();
    if over_v6 * 5 < connections * 2 {
        environment.account.fail(format!(
            "only {over_v6} of {connections} connections over IPv6: 40 % are the least"
        ));
    }
    counts.len() as u64 + 1
}

/// Runs one kind of chaos; should it fail, that is entered.
fn spawn<'scope>(
    scope: &'scope thread::Scope<'scope, '_>,
    environment: &'scope Environment,
    what: &'static str,
    rng: Rng,
    work: impl FnOnce(Rng) -> Result<()> + Send + 'scope,
) -> thread::ScopedJoinHandle<'scope, ()> {
    scope.spawn(move || {
        if let Err(error) = work(rng) {
            environment.account.fail(format!("{what}: {error:#}"));
        }
    })
}

/// After cleanup neither pins nor programs remain.
fn leave_nothing(environment: &Environment) -> Result<()> {
    let programs = chaos::programs(&environment.places)?;
    let cleanup = environment.places.output(&["cleanup"])?;
    ensure!(
        cleanup.status.success(),
        "cleanup: {}",
        String::from_utf8_lossy(&cleanup.stderr)
    );
    let root = environment.places.bpffs.join("sidetrack");
    ensure!(!root.exists(), "{} remains", root.display());
    // The kernel frees programs a moment after the last use.
    let deadline = Instant::now() + SETTLE;
    for (link, id) in &programs {
        let show = ["bpftool", "prog", "show", "id", &id.to_string()].map(str::to_owned);
        let words: Vec<&str> = show.iter().map(String::as_str).collect();
        while output(&words)
            .context("look for programs")?
            .status
            .success()
        {
            ensure!(Instant::now() < deadline, "program {id} of {link} remains");
            thread::sleep(Duration::from_millis(100));
        }
    }
    Ok(())
}
