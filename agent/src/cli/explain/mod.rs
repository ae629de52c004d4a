//! `sidetrack explain`: how a connection is handled, and by which rule.

use std::{
    net::{IpAddr, SocketAddr},
    process::ExitCode,
};

use anyhow::Result;
use clap::{Args, Subcommand};
use serde::Serialize;
use sidetrack_common::{
    addr::{Addr, Family},
    decide::{self, Decision, Inbound, Outbound, Owner, Verdict},
    pod::IfaceRow,
};

use super::{
    Format, output,
    target::{Target, Which},
};
use sidetrack_policy::rules::{self, ListTables};

#[derive(Debug, Args)]
pub(super) struct Options {
    #[command(flatten)]
    which: Which,
    #[command(subcommand)]
    direction: Direction,
    /// Form of the output
    #[arg(short, long, value_enum, default_value_t, global = true)]
    output: Format,
}

#[derive(Debug, Subcommand)]
enum Direction {
    /// A connect in the pod
    Outbound {
        /// User that creates the socket
        #[arg(long)]
        uid: u32,
        /// Primary group that creates the socket
        #[arg(long)]
        gid: u32,
        /// Address the socket is bound to
        #[arg(long, value_name = "IP")]
        src: Option<IpAddr>,
        /// Where it connects to
        #[arg(long, value_name = "IP:PORT")]
        dst: SocketAddr,
    },
    /// An inbound connection of the pod
    Inbound {
        /// Where it comes from [default: somewhere off the pod]
        #[arg(long, value_name = "IP")]
        src: Option<IpAddr>,
        /// Where it was sent to
        #[arg(long, value_name = "IP:PORT")]
        dst: SocketAddr,
        /// Interface it arrives on
        #[arg(long, value_name = "NAME")]
        iface: Option<String>,
    },
}

#[derive(Debug, Serialize)]
struct Answer {
    /// `redirect`, `untouched` or `refuse`.
    verdict: &'static str,
    /// Capture port of a redirect.
    port: Option<u16>,
    /// errno of a refusal.
    errno: Option<i32>,
    /// The rule in iptables' words, or what decided instead of a rule.
    rule: String,
    /// The rule's name.
    name: &'static str,
    /// Whose rules they are.
    dialect: String,
    /// Whether the sidecar listens on that port now, if that is known.
    sidecar_listens: Option<bool>,
}

pub(super) async fn run(options: Options) -> Result<ExitCode> {
    let target = Target::find(&options.which).await?;
    let (decision, family) = decide(&target, &options.direction);
    let mut answer = answer(&target, &decision, family);
    if let (Some(port), Some(live)) = (answer.port, &target.live) {
        answer.sidecar_listens = live.listens(port)?;
    }
    match options.output {
        Format::Json => output::print_json(&answer)?,
        Format::Table => print(&answer, &decision)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn decide(target: &Target, direction: &Direction) -> (Decision, Family) {
    let policy = target.policy.compile().row();
    let tables = ListTables {
        policy: &target.policy,
        routes: target,
        before_sidecar: target.before_sidecar,
    };
    let bound = |ip: &Option<IpAddr>| ip.map_or(Addr::UNSPECIFIED, Addr::from);
    let captured = |family: Family| family == Family::V4 || target.ipv6;
    match direction {
        Direction::Outbound { uid, gid, src, dst } => {
            let destination = Addr::from(dst.ip());
            let conn = Outbound {
                owner: Owner {
                    uid: *uid,
                    gid: *gid,
                },
                source: bound(src),
                destination,
                port: dst.port(),
                routing_header: false,
                captured_family: captured(destination.family()),
            };
            let family = decide::effective_destination(&conn).family();
            (decide::outbound(&policy, &conn, &tables), family)
        }
        Direction::Inbound { src, dst, iface } => {
            let destination = Addr::from(dst.ip());
            let syn = Inbound {
                source: bound(src),
                destination,
                port: dst.port(),
                iface: iface
                    .as_ref()
                    .map_or(IfaceRow::PLAIN, |name| target.policy.iface(name)),
                captured_family: captured(destination.family()),
            };
            (
                decide::inbound(&policy, &syn, &tables),
                destination.family(),
            )
        }
    }
}

fn answer(target: &Target, decision: &Decision, family: Family) -> Answer {
    let (verdict, port, errno) = match decision.verdict {
        Verdict::Untouched => ("untouched", None, None),
        Verdict::Redirect { port, .. } => ("redirect", Some(port), None),
        Verdict::Fail { errno } => ("refuse", None, Some(errno)),
    };
    let line = rules::line_of(&target.policy, family, decision);
    Answer {
        verdict,
        port,
        errno,
        rule: line.map_or_else(
            || decision.rule.describe().to_owned(),
            |line| line.command(),
        ),
        name: decision.rule.name(),
        dialect: target.policy.dialect.to_string(),
        sidecar_listens: None,
    }
}

fn print(answer: &Answer, decision: &Decision) -> Result<()> {
    let verdict = match (answer.port, answer.errno) {
        (Some(port), _) => format!("redirect to {port}"),
        (_, Some(errno)) => format!("refuse: {}", std::io::Error::from_raw_os_error(errno)),
        _ => answer.verdict.to_owned(),
    };
    output::print(format!("verdict  {verdict}"))?;
    output::print(format!("because  {}", decision.rule.describe()))?;
    if answer.rule != decision.rule.describe() {
        output::print(format!("rule     {}", answer.rule))?;
    }
    output::print(format!("dialect  {}", answer.dialect))?;
    if answer.sidecar_listens == Some(false) {
        output::print("sidecar  does not listen on that port now: the connection is refused")?;
    }
    Ok(())
}
