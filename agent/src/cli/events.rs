//! `sidetrack events`: what happened lately on this node.

use std::{process::ExitCode, time::SystemTime};

use anyhow::{Context as _, Result};
use clap::Args;
use sidetrack_live::history::{Entry, Flags, HEADER};

use super::{
    Format, Places, output,
    pod_name::{self, NamespaceFlag, PodName},
};
use crate::{client::Client, observe::history};

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  sidetrack events                              what happened lately on this node?
  sidetrack events shop/web-0 --since 1h        to this pod, in the last hour?
  sidetrack events --kind refused -o json       for programs")]
pub(super) struct Options {
    /// Only events of this pod, which need not be there any more
    #[arg(value_name = "NAMESPACE/POD")]
    pod: Option<PodName>,
    /// Only events of pods of this Kubernetes namespace
    #[arg(short, long, value_name = "NAMESPACE", value_parser = pod_name::namespace)]
    namespace: Option<String>,
    #[command(flatten)]
    flags: Flags,
    #[command(flatten)]
    places: Places,
    /// Form of the output
    #[arg(short, long, value_name = "FORMAT", value_enum, default_value_t)]
    output: Format,
}

pub(super) async fn run(options: Options) -> Result<ExitCode> {
    let begin = options.flags.since.map(|since| {
        let begin = SystemTime::now().checked_sub(since);
        history::timestamp(begin.unwrap_or(SystemTime::UNIX_EPOCH))
    });
    let namespace = NamespaceFlag::from(options.namespace.clone());
    let pod = options.pod.as_ref();
    let pod = pod.map(|pod| namespace.complete(pod).to_string());
    let mut entries = known(&options.places).await?;
    entries.retain(|entry| {
        let only = options.places.only_namespace.as_ref();
        options.flags.wants(entry, begin.as_deref())
            && only.is_none_or(|it| entry.is_in(it))
            && pod.as_ref().is_none_or(|pod| entry.is_about(pod))
            && options.namespace.as_ref().is_none_or(|it| entry.is_in(it))
    });
    if !output::print_value(options.output, &entries)? {
        if entries.is_empty() {
            output::remark("there are no such events");
        }
        let mut table = output::table(HEADER);
        for entry in &entries {
            table.add_row(entry.cells());
        }
        output::print_table(&table)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The events that the agent has; without one, what the last one has written.
async fn known(places: &Places) -> Result<Vec<Entry>> {
    match Client::new(&places.socket).get("/v1/events").await {
        Ok(entries) => Ok(entries),
        Err(no_agent) => {
            let said = format!("{no_agent:#}");
            let path = history::path(&places.socket);
            let entries = history::read(&path).context(said.clone())?;
            let entries = entries.context(said.clone())?;
            output::remark(format!("{said}; this is what {} has:", path.display()));
            Ok(entries)
        }
    }
}
