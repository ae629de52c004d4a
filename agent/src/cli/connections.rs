//! `sidetrack connections`: open TCP connections, of a pod or of all enrolled pods of the node.

mod node;

use std::{path::PathBuf, process::ExitCode};

use anyhow::{Context as _, Result, bail, ensure};
use clap::Args;

use super::{
    Format, Places, output,
    pod_name::{NamespaceFlag, PodName},
    pods,
};
use crate::api::NetnsStatus;
use crate::observe::connections::{Connection, Direction, End, Listing, MAX_ROWS, Via, list};
use sidetrack_datapath::{
    kernel::{maps::Maps, pins::Pins, sock_records::Records},
    netns::{Netns, inode_at, processes},
};

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  sidetrack connections shop/web-0            where is this pod connected to, and through what?
  sidetrack connections                       who talks to whom on this node?
  sidetrack connections shop/web-0 -o json    with the addresses that `ss` shows in the pod")]
pub(super) struct Options {
    /// The pod. Without one, all enrolled pods of the node
    #[arg(value_name = "NAMESPACE/POD")]
    pod: Option<PodName>,
    #[command(flatten)]
    namespace: NamespaceFlag,
    /// Also show the accepted end of connections within the pod, such as the sidecar's
    #[arg(long)]
    all: bool,
    /// Show that many connections at most
    #[arg(long, value_name = "NUMBER", default_value_t = 1000, value_parser = limit)]
    limit: usize,
    #[command(flatten)]
    places: Places,
    /// Form of the output
    #[arg(short, long, value_name = "FORMAT", value_enum, default_value_t)]
    output: Format,
}

fn limit(text: &str) -> Result<usize, String> {
    let range = 1..=MAX_ROWS;
    let number = text.parse().ok().filter(|number| range.contains(number));
    number.ok_or_else(|| format!("it must be a number between 1 and {MAX_ROWS}"))
}

pub(super) async fn run(options: Options) -> Result<ExitCode> {
    let pods = pods::known(&options.places).await?;
    let Some(pod) = &options.pod else {
        return node::run(&options, pods);
    };
    let pod = pods::named(pods, &options.namespace.complete(pod))?;
    let name = pod.full_name();
    let Some(netns) = &pod.netns else {
        bail!(
            "pod {name} is not enrolled, so sidetrack has no records of its connections: {}",
            pod.known_reason()
        );
    };
    let netns = open(netns).with_context(|| format!("pod {name}"))?;
    let pins = Pins::new(&options.places.bpffs)?;
    let (maps, records) = (Maps::open(&pins)?, Records::open(&pins)?);
    let listing = list(&netns, &maps, &records, options.limit, options.all)
        .with_context(|| format!("pod {name}"))?;
    if !output::print_value(options.output, &listing)? {
        print(&name, &listing)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Opens a pod's namespace, by the agent's path or by any process that is in it.
fn open(status: &NetnsStatus) -> Result<Netns> {
    let path = PathBuf::from(&status.path);
    let path = if inode_at(&path) == Some(status.inode) {
        path
    } else {
        let pid = processes::process_in(status.inode).with_context(|| {
            format!(
                "no process remains in its network namespace net:[{}], and {} does not lead to it: the pod has ended, or this command does not see the node's processes",
                status.inode, status.path
            )
        })?;
        PathBuf::from(format!("/proc/{pid}/ns/net"))
    };
    let netns = Netns::open(&path)?;
    ensure!(
        netns.cookie() == status.cookie,
        "{} is another network namespace by now: the pod has ended",
        path.display()
    );
    Ok(netns)
}

fn print(name: &str, listing: &Listing) -> Result<()> {
    if listing.connections.is_empty() {
        output::print(format!("pod {name}: no open TCP connections"))?;
    } else {
        let mut table = output::table(COLUMNS);
        for connection in &listing.connections {
            table.add_row(row(connection));
        }
        output::print_table(&table)?;
    }
    omitted(listing.omitted);
    Ok(())
}

/// Says on stderr that there are more, so that the output stays a list of connections.
fn omitted(omitted: Option<usize>) {
    match omitted {
        Some(0) => {}
        Some(omitted) => output::remark(format!("there are {omitted} more: see --limit")),
        None => output::remark("there are more connections, of an unknown number"),
    }
}

const COLUMNS: [&str; 9] = [
    "DIRECTION",
    "STATE",
    "CLIENT",
    "ORIGINAL DESTINATION",
    "VIA",
    "UID",
    "SENT",
    "RECEIVED",
    "IDLE",
];

fn row(connection: &Connection) -> [String; COLUMNS.len()] {
    const UNKNOWN: &str = "unknown";
    let text = |value: Option<String>| value.unwrap_or_else(|| UNKNOWN.to_owned());
    let direction = match (connection.direction, connection.end) {
        (Direction::Outbound, End::Accepted) => "outbound (accepted)",
        (Direction::Outbound, _) => "outbound",
        (Direction::Inbound, _) => "inbound",
        (Direction::Unknown, _) => UNKNOWN,
    };
    let (client, destination) = if connection.direction == Direction::Unknown {
        // Which of them is the client's is not known.
        (
            format!("{} (local)", connection.local),
            format!("{} (remote)", connection.remote),
        )
    } else {
        (
            text(connection.client.map(|it| it.to_string())),
            text(connection.original_destination.map(|it| it.to_string())),
        )
    };
    let via = match (connection.via, connection.capture_port) {
        (Via::Sidecar, Some(port)) => format!("sidecar {port}"),
        (Via::Sidecar, None) => "sidecar".to_owned(),
        (Via::Direct, _) => "direct".to_owned(),
        (Via::Unknown, _) => UNKNOWN.to_owned(),
    };
    [
        direction.to_owned(),
        connection.state.to_owned(),
        client,
        destination,
        via,
        text(connection.uid.map(|uid| uid.to_string())),
        output::or_dash(connection.sent_bytes),
        output::or_dash(connection.received_bytes),
        output::or_dash(connection.idle_ms.map(|idle| output::seconds(idle / 1000))),
    ]
}
