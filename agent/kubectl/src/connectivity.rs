//! `kubectl sidetrack test`: pods with real sidecars in a namespace of their own, and connections between them.
//!
//! Nothing outside that namespace is created or changed. It is deleted at the end, also after a failure or a signal.

mod cases;
mod manifests;
mod place;
mod report;
mod start;

use std::{process::ExitCode, time::Duration};

use anyhow::{Result, anyhow};
use clap::Args;
use tokio::signal::unix::{Signal, SignalKind, signal};

use self::{
    cases::{CASES, CaseAnswer},
    manifests::Images,
    place::Place,
    report::{ConnectivityReport, Row},
};
use crate::{
    ask,
    cluster::Cluster,
    exec::{self, Target},
    flags::{Format, positive_duration},
    output,
};

#[derive(Debug, Args)]
pub struct Options {
    /// Image of the test's pods, with Python 3 as python3 and Envoy as envoy
    #[arg(
        long,
        value_name = "REF",
        required_unless_present_all = ["app_image", "proxy_image"]
    )]
    mesh_image: Option<String>,
    /// Image of the apps, with Python 3 as python3 [default: that of --mesh-image]
    #[arg(long, value_name = "REF")]
    app_image: Option<String>,
    /// Image of the sidecars, with Envoy as envoy [default: that of --mesh-image]
    #[arg(long, value_name = "REF")]
    proxy_image: Option<String>,
    /// Name of the namespace that is created for the test, and deleted [default: sidetrack-test- and a random suffix]
    #[arg(long, value_name = "NAME")]
    test_namespace: Option<String>,
    /// How long pods may take to start, to be enrolled and to be deleted
    #[arg(long, value_name = "DURATION", default_value = "2m", value_parser = positive_duration)]
    start_timeout: Duration,
    /// How long one connection may take
    #[arg(long, value_name = "DURATION", default_value = "5s", value_parser = positive_duration)]
    connect_timeout: Duration,
    /// Keep the namespace with its pods, to look at them
    #[arg(long)]
    keep: bool,
    /// Form of the output
    #[arg(short, long, value_name = "FORMAT", value_enum, default_value_t)]
    output: Format,
}

impl Options {
    fn images(&self) -> Images<'_> {
        // clap requires it where one of the others is missing.
        let mesh = self.mesh_image.as_deref().unwrap_or_default();
        Images {
            app: self.app_image.as_deref().unwrap_or(mesh),
            proxy: self.proxy_image.as_deref().unwrap_or(mesh),
        }
    }
}

pub async fn run(cluster: &Cluster, options: &Options) -> Result<ExitCode> {
    cluster.some_agents().await?;
    let mut signals = Signals::new()?;
    let place = Place::create(cluster, options.test_namespace.as_deref()).await?;
    output::remark(format!("namespace {} is created", place.name()));
    let tried = tokio::select! {
        tried = try_all(cluster, options, &place) => tried,
        name = signals.next() => Err(anyhow!("ended by {name}")),
    };
    let removed = match options.keep {
        true => {
            let name = place.name();
            output::remark(format!(
                "namespace {name} is kept: kubectl delete namespace {name} removes it"
            ));
            Ok(())
        }
        false => remove(&place, options, &mut signals).await,
    };
    let rows = match (tried, &removed) {
        (Ok(rows), _) => rows,
        (Err(error), Ok(())) => return Err(error),
        (Err(error), Err(problem)) => {
            output::remark(format!("{problem:#}"));
            return Err(error);
        }
    };
    let report = ConnectivityReport::new(place.name(), rows);
    output::show(options.output, &report, || report.text())?;
    removed?;
    Ok(report.exit_code())
}

async fn remove(place: &Place, options: &Options, signals: &mut Signals) -> Result<()> {
    let name = place.name();
    output::remark(format!("deleting namespace {name}"));
    // Signals end only the wait.
    place.delete().await?;
    tokio::select! {
        gone = place.wait_gone(options.start_timeout) => gone,
        signal = signals.next() => Err(anyhow!("ended by {signal} while namespace {name} was being deleted")),
    }
}

async fn try_all(cluster: &Cluster, options: &Options, place: &Place) -> Result<Vec<Row>> {
    place.fill(options.images()).await?;
    output::remark("waiting for the pods to start");
    start::wait_running(place, options.start_timeout).await?;
    output::remark("waiting for the pods to be enrolled");
    start::wait_enrolled(cluster, place, options.start_timeout).await?;
    let probes = start::wait_ready(place, options.start_timeout).await;
    let addresses = place.addresses().await?;
    // The Service's rules take a moment to reach the nodes. What comes of it is checked below.
    let service = (addresses.service.clone(), manifests::SERVICE_PORT);
    let reached = async {
        while call(
            place,
            options,
            ("plain", manifests::APP),
            (&service.0, service.1),
        )
        .await
        .map_or(true, |seen| seen.error.is_some())
        {
            tokio::time::sleep(place::PAUSE).await;
        }
    };
    let _ = tokio::time::timeout(options.start_timeout, reached).await;
    let mut rows = Vec::new();
    for case in CASES {
        let seen = call(place, options, case.from, (case.to)(&addresses)).await;
        for (name, check) in case.promises {
            let outcome = match &seen {
                Ok(seen) => check(&addresses, seen),
                Err(error) => Err(format!("{error:#}")),
            };
            rows.push(Row::new(name, outcome));
        }
    }
    rows.push(Row::new(
        "probes: kubelet reaches the app through its sidecar, and the sidecar's health port",
        probes.map_err(|error| format!("{error:#}")),
    ));
    Ok(rows)
}

/// One request from a container.
async fn call(
    place: &Place,
    options: &Options,
    (pod, container): (&str, &str),
    (address, port): (&str, u16),
) -> Result<CaseAnswer> {
    let (port, seconds) = (
        port.to_string(),
        options.connect_timeout.as_secs_f64().to_string(),
    );
    let words = [
        "python3",
        "/etc/test/app.py",
        "call",
        address,
        &port,
        &seconds,
    ];
    let target = Target {
        namespace: place.name(),
        pod,
        container,
    };
    // The connection, its request, and the command itself.
    let patience = options.connect_timeout * 2 + Duration::from_secs(10);
    let asked = exec::collect_in(place.client(), &target, &words);
    let finished = exec::within(patience, asked).await?;
    ask::understood(&finished)
}

/// What ends the test early.
struct Signals {
    interrupt: Signal,
    terminate: Signal,
}

impl Signals {
    fn new() -> Result<Self> {
        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
        })
    }

    async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.interrupt.recv() => "Ctrl-C",
            _ = self.terminate.recv() => "SIGTERM",
        }
    }
}
