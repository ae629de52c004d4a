//! What `deploy/monitoring` and docs/metrics.md say about the metrics, compared with a real agent's page by
//! Debian's Prometheus and promtool.
//!
//! Run by `cargo xtask test`, as root. One agent and one Prometheus serve all tests. With
//! `SIDETRACK_DASHBOARD=FILE.svg` it draws the dashboard instead, which takes some minutes.

mod alerts;
mod dashboard;
mod documented;
mod live;
mod page;
mod picture;
mod prometheus;

use std::{path::Path, process::ExitCode, sync::Arc};

use anyhow::Result;
use lab::{ledger, private};
use libtest_mimic::{Arguments, Trial};
use parking_lot::Mutex;

use crate::live::Live;

type Test = fn(&mut Live) -> Result<()>;

/// In this order: the last one ends the agent.
const TESTS: [(&str, Test); 7] = [
    ("rules_fire_when_they_should", alerts::promtool_agrees),
    ("promtool_accepts_the_page", page::promtool_agrees),
    ("series_of_pods_are_bounded", page::pods_are_bounded),
    ("every_metric_is_documented", documented::metrics_agree),
    ("every_alert_is_documented", documented::alerts_agree),
    ("every_panel_shows_data", dashboard::shows_data),
    ("alerts_fire", alerts::fire),
];

fn main() -> ExitCode {
    let mut arguments = Arguments::from_args();
    // The agent ends with the thread it was started by.
    arguments.test_threads = Some(1);
    let name = |test: &str| format!("monitoring::{test}");
    let filter = arguments.filter.clone().unwrap_or_default();
    let any = TESTS.iter().any(|(test, _)| name(test).contains(&filter));
    // Listing needs neither root nor an agent; a filter that leaves nothing needs none either.
    let live = if arguments.list || !any {
        Ok(None)
    } else {
        prepare().map(Some)
    };
    let live = match live {
        Ok(live) => live,
        Err(error) => {
            eprintln!("error: {error:#}");
            return ExitCode::FAILURE;
        }
    };
    if let (Some(live), Some(path)) = (&live, std::env::var_os("SIDETRACK_DASHBOARD")) {
        let mut live = live.lock();
        return match picture::draw(&mut live, Path::new(&path)) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("error: {error:#}");
                ExitCode::FAILURE
            }
        };
    }
    let trials = TESTS.map(|(test, run)| {
        let live = live.clone();
        Trial::test(name(test), move || {
            let live = live.ok_or("no agent")?;
            let mut live = live.lock();
            run(&mut live).map_err(|error| format!("{error:#}").into())
        })
    });
    let conclusion = libtest_mimic::run(&arguments, trials.into());
    drop(live);
    if conclusion.has_failed() {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    }
}

fn prepare() -> Result<Arc<Mutex<Live>>> {
    private::require_root()?;
    private::enter()?;
    ledger::sweep()?;
    Ok(Arc::new(Mutex::new(Live::start()?)))
}
