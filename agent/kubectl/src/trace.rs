//! `kubectl sidetrack trace` without a pod: the traces of all nodes at once.
//!
//! Invariants: a node that does not answer never stops the others, and is named in the end; no command stays in
//! an agent's container.

mod node;
mod show;

use std::{process::ExitCode, time::Duration};

use anyhow::Result;
use clap::Args;
use sidetrack_base::runtime::{sleep_for, until_signal};
use sidetrack_live::trace::Flags;
use tokio::{
    sync::{mpsc, watch},
    time::MissedTickBehavior,
};

use self::{
    node::{Item, Traced},
    show::Show,
};
use crate::{
    cluster::Cluster,
    flags::{Format, Which, output_word},
    output,
};

/// How long commands get to end after they are asked to.
const FAREWELL: Duration = Duration::from_secs(2);
/// How often pods are listed again, where that may change what is shown.
const RELIST: Duration = Duration::from_secs(5);

#[derive(Debug, Args)]
pub struct Options {
    #[command(flatten)]
    which: Which,
    #[command(flatten)]
    flags: Flags,
    /// Form of the output
    #[arg(short, long, value_name = "FORMAT", value_enum, default_value_t)]
    output: Format,
}

impl Options {
    /// Flags that no connection fits.
    pub fn contradiction(&self) -> Option<String> {
        self.flags.contradiction()
    }

    /// The same for `sidetrack trace` of one pod, as words.
    pub fn words(&self) -> Result<Vec<String>, String> {
        if self.which.all_namespaces || self.which.selector.is_some() {
            return Err("-A and -l are for a trace without a pod".to_owned());
        }
        if let Some(problem) = self.contradiction() {
            return Err(problem);
        }
        let mut words = self.flags.filter_words();
        if let Some(duration) = self.flags.duration {
            words.push(format!("--duration={}ms", duration.as_millis()));
        }
        words.extend(self.flags.count.map(|count| format!("--count={count}")));
        words.extend(output_word(self.output));
        Ok(words)
    }
}

pub async fn run(cluster: &Cluster, options: &Options) -> Result<ExitCode> {
    cluster.check_namespace(&options.which).await?;
    let agents = cluster.some_agents().await?;
    let mut pods = cluster.places(&options.which).await?;
    let mut words = vec!["trace".to_owned(), "--attended".to_owned()];
    if !options.which.all_namespaces {
        words.push(format!("--namespace={}", cluster.namespace));
    }
    words.extend(options.flags.filter_words());
    let (end, ended) = watch::channel(false);
    let (out, mut lines) = mpsc::channel(1024);
    let mut tasks = tokio::task::JoinSet::new();
    for agent in agents.values() {
        let traced = Traced {
            cluster: cluster.clone(),
            words: words.clone(),
            out: out.clone(),
            end: ended.clone(),
        };
        tasks.spawn(traced.run(agent.clone()));
    }
    drop(out);
    let mut show = Show::new(agents.keys(), options.output, options.flags.count)?;
    let mut over = std::pin::pin!(sleep_for(options.flags.duration));
    let mut signal = std::pin::pin!(until_signal());
    let mut relist = tokio::time::interval_at(tokio::time::Instant::now() + RELIST, RELIST);
    // It is not waited for all the time.
    relist.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            line = lines.recv() => match line {
                Some(item) => show.take(item, &pods)?,
                None => break,
            },
            () = &mut over => break,
            signal = &mut signal => { signal?; break }
            // All pods of a cluster are many.
            _ = relist.tick(), if pods.only_listed || show.needs_relist => {
                match cluster.places(&options.which).await {
                    Ok(listed) => {
                        pods = listed;
                        show.needs_relist = false;
                    }
                    Err(error) => output::remark(format!("{error:#}")),
                }
            }
        }
        if show.is_over() {
            break;
        }
    }
    end.send_replace(true);
    // What the agents had sent before they were asked to end counts.
    let rest = async {
        while let Some(item) = lines.recv().await {
            if matches!(item, Item::Line { .. }) {
                show.take(item, &pods)?;
            }
        }
        anyhow::Ok(())
    };
    if let Ok(shown) = tokio::time::timeout(FAREWELL, rest).await {
        shown?;
    }
    // What has not ended by itself ends with its connection.
    tasks.abort_all();
    Ok(show.end())
}
