//! `sidetrack trace`: connections as they are decided.

use std::{
    cell::Cell,
    io::Read as _,
    ops::ControlFlow,
    process::ExitCode,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use clap::Args;
use sidetrack_live::trace::{AttendedLine, Columns, Flags, Summary, missing, name};
use sidetrack_policy::text::escaped;

use super::{
    Format, Places, output,
    pod_name::{self, NamespaceFlag, PodName},
    pods,
};
use crate::observe::trace::Filter;
use crate::server::metrics_http::LIVE;
use crate::{
    api::{PodStatus, TraceLine},
    client::Client,
};
use sidetrack_base::runtime::{sleep_for, until_signal};

/// How often a trace that is attended says that it runs.
const BEAT: Duration = Duration::from_secs(1);

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  sidetrack trace --refused             what is refused on this node, and why
  sidetrack trace shop/web-0            everything that a pod connects to, and what connects to it
  sidetrack trace --port 443 -o json    one JSON object per line")]
pub(super) struct Options {
    /// Only this pod
    #[arg(value_name = "NAMESPACE/POD")]
    pod: Option<PodName>,
    /// Only pods of this Kubernetes namespace
    #[arg(short, long, value_name = "NAMESPACE", value_parser = pod_name::namespace)]
    namespace: Option<String>,
    #[command(flatten)]
    flags: Flags,
    /// For `kubectl sidetrack`: end also when standard input has anything, or ends
    #[arg(long, hide = true)]
    end_with_input: bool,
    /// For `kubectl sidetrack`: the same, with lines of JSON and, now and then, one that the trace runs
    #[arg(long, hide = true)]
    attended: bool,
    #[command(flatten)]
    places: Places,
    /// Form of the output
    #[arg(short, long, value_name = "FORMAT", value_enum, default_value_t)]
    output: Format,
}

impl Options {
    /// The pod's full name. One that is named with its namespace need not be known yet.
    async fn pod(&self) -> Result<Option<String>> {
        let namespace = NamespaceFlag::from(self.namespace.clone());
        let Some(pod) = self.pod.as_ref().map(|pod| namespace.complete(pod)) else {
            return Ok(None);
        };
        if !pod.has_namespace() {
            let known = pods::known(&self.places).await?;
            let found = pods::named(known, &pod)?;
            note_state(&found.full_name(), Some(&found));
            return Ok(Some(found.full_name()));
        }
        let name = pod.to_string();
        // Without an answer the trace itself says why.
        if let Ok(known) = pods::answered(&self.places).await {
            note_state(&name, known.iter().find(|pod| pod.full_name() == name));
        }
        Ok(Some(name))
    }

    fn filter(&self, pod: Option<String>) -> Filter {
        Filter {
            namespace: self.namespace.clone().filter(|_| pod.is_none()),
            pod,
            direction: self.flags.direction.map(name),
            verdict: self.flags.verdict.map(name),
            refused: self.flags.refused,
            rule: self.flags.rule.clone(),
            port: self.flags.port,
            address: self.flags.address,
            process: self.flags.process.clone(),
        }
    }
}

/// Says why nothing is shown of a pod for now. It may be enrolled while the command runs.
fn note_state(name: &str, pod: Option<&PodStatus>) {
    match pod {
        None => output::remark(format!(
            "pod {name} is not known: nothing is shown until it is enrolled"
        )),
        Some(pod) if pod.netns.is_none() => output::remark(format!(
            "pod {name} is not enrolled, and nothing is shown until it is: {}",
            pod.known_reason()
        )),
        Some(_) => {}
    }
}

pub(super) async fn run(options: Options) -> Result<ExitCode> {
    if let Some(contradiction) = options.flags.contradiction() {
        super::usage(&contradiction);
    }
    let query = serde_urlencoded::to_string(options.filter(options.pod().await?))
        .context("write the request")?;
    let client = Client::new(&options.places.socket);
    let mut shown = Summary::default();
    let path = format!("/v1/trace?{query}");
    let is_table = matches!(options.output, Format::Table | Format::Wide);
    let mut columns = Columns::default();
    let header = columns.header();
    let heading = || match (options.attended, is_table) {
        (true, _) => alive(0),
        (false, true) => output::print(header),
        (false, false) => Ok(()),
    };
    let written = Cell::new(Instant::now());
    let lines = client.lines(&path, heading, |line: TraceLine| {
        match &line {
            TraceLine::Event(event) => shown.add(event),
            TraceLine::Lost(count) => shown.add_lost(*count),
        }
        match line {
            line if options.attended => output::print_one(Format::Json, &AttendedLine::Line(line))?,
            TraceLine::Event(event) if is_table => output::print(columns.line(&event))?,
            TraceLine::Lost(count) if is_table => output::print(missing(count))?,
            line => output::print_one(options.output, &line)?,
        }
        written.set(Instant::now());
        let is_last = options.flags.count.is_some_and(|most| shown.events >= most);
        Ok(if is_last || output::is_closed() {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        })
    });
    let over = sleep_for(options.flags.duration);
    let beats = beat(&client, &written, options.attended);
    let result = tokio::select! {
        result = lines => result,
        signal = until_signal() => Ok(signal?),
        () = over => Ok(()),
        () = until_input(), if options.attended || options.end_with_input => Ok(()),
        result = beats => result,
    };
    // On stderr, so that the output stays a list of connections. Who attends counts the lines that arrive.
    if !options.attended && (result.is_ok() || shown.events > 0) {
        output::remark(escaped(&shown.text()));
    }
    result.map(|()| ExitCode::SUCCESS)
}

fn alive(number: u64) -> Result<()> {
    output::print_one(Format::Json, &AttendedLine::Alive(number))
}

/// Looks again and again whether the agent still answers, and says so to who attends. One that hangs sends nothing, as one
/// without connections.
async fn beat(client: &Client, written: &Cell<Instant>, attended: bool) -> Result<()> {
    for number in 1.. {
        tokio::time::sleep(BEAT).await;
        let asked = Instant::now();
        // Whether it is well is not the question. A line since then is an answer: while a reader of this pauses, what the
        // agent says is not looked at.
        match client.text(LIVE).await {
            Err(silent) if written.get() < asked => return Err(silent),
            _ => {}
        }
        if attended {
            alive(number)?;
        }
        if output::is_closed() {
            break;
        }
    }
    Ok(())
}

/// Waits until standard input has anything or ends: a program that runs this through the API server cannot send
/// signals, and is gone without a word when its connection breaks.
async fn until_input() {
    let (ended, end) = tokio::sync::oneshot::channel();
    // Of its own: the process ends although this one still reads.
    thread::spawn(move || {
        let _ = std::io::stdin().read(&mut [0]);
        let _ = ended.send(());
    });
    let _ = end.await;
}
