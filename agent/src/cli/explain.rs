//! `sidetrack explain`: how a connection is handled, and by which rule.

mod answer;
mod destination;
mod owner;

use std::{
    net::{IpAddr, SocketAddr},
    process::ExitCode,
};

use anyhow::Result;
use clap::{Args, Subcommand, ValueEnum};
use serde::Serialize;
use sidetrack_common::{addr::Addr, dns::DNS_PORT};
use sidetrack_policy::Policy;

use self::{
    answer::Explanation,
    destination::{Destination, Resolved},
    owner::Owner,
};
use super::{
    Format,
    offline::{Enrollment, ip},
    output,
    target::{Target, Which},
    usage,
};

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  sidetrack explain shop/web-0 outbound --dst 10.96.0.1:443
  sidetrack explain shop/web-0 outbound --uid 1337 --dst ledger.bank:80
  sidetrack explain shop/web-0 inbound --dst 10.244.0.7:8080
  sidetrack explain --manifest web.yaml --pod-ip fd00::7 outbound --dst '[fd00::9]:80'")]
pub(super) struct Options {
    #[command(flatten)]
    which: Which,
    #[command(subcommand)]
    direction: Direction,
    /// Form of the output
    #[arg(
        short,
        long,
        value_name = "FORMAT",
        value_enum,
        default_value_t,
        global = true
    )]
    output: Format,
}

#[derive(Debug, Subcommand)]
enum Direction {
    /// A connect in the pod
    Outbound {
        /// User that creates the socket [default: an application's]
        #[arg(long, value_parser = id)]
        uid: Option<u32>,
        /// Primary group that creates the socket [default: an application's]
        #[arg(long, value_parser = id)]
        gid: Option<u32>,
        /// Address the socket is bound to
        #[arg(long, value_name = "IP", value_parser = ip)]
        src: Option<IpAddr>,
        /// SO_MARK of the socket, which counts in mode TPROXY
        #[arg(long, value_name = "NUMBER", default_value_t = 0)]
        mark: u32,
        /// UDP: a connect or a datagram. Only DNS queries are ever captured
        #[arg(long, value_enum, default_value_t)]
        protocol: Protocol,
        /// Where it connects to. A name is looked up where this command runs, not in the pod
        #[arg(long, value_name = "IP|NAME:PORT")]
        dst: Destination,
    },
    /// An inbound connection of the pod
    Inbound {
        /// Where it comes from [default: somewhere off the pod]
        #[arg(long, value_name = "IP", value_parser = ip)]
        src: Option<IpAddr>,
        /// Where it was sent to
        #[arg(long, value_name = "IP|NAME:PORT")]
        dst: Destination,
        /// Interface it arrives on
        #[arg(long, value_name = "NAME", value_parser = interface)]
        iface: Option<String>,
    },
}

/// A name that an interface can have.
fn interface(text: &str) -> Result<String, String> {
    // IFNAMSIZ in linux/if.h, with the NUL at its end.
    const LONGEST: usize = 15;
    let is_odd = |c: char| c == '/' || c == ':' || c.is_whitespace() || c.is_control();
    if (1..=LONGEST).contains(&text.len()) && !text.contains(is_odd) {
        return Ok(text.to_owned());
    }
    Err(format!(
        "write the name of an interface, of 1 to {LONGEST} bytes"
    ))
}

/// A user or group: the largest number stands for none.
fn id(text: &str) -> Result<u32, String> {
    let id = text.parse().ok().filter(|id| *id != u32::MAX);
    id.ok_or_else(|| "write the number of a user or group, such as 1000".to_owned())
}

/// A transport.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum Protocol {
    #[default]
    Tcp,
    Udp,
}

impl Direction {
    /// Why there is no such connection.
    fn contradiction(&self, target: &Target, destination: SocketAddr) -> Option<String> {
        let source = match self {
            Self::Outbound { src, .. } | Self::Inbound { src, .. } => src.as_ref(),
        };
        let ip = destination.ip().to_canonical();
        if let Some(source) = source
            && source.to_canonical().is_ipv4() != ip.is_ipv4()
        {
            return Some(format!(
                "--src {source} and --dst {destination} are of different families"
            ));
        }
        let is_inbound = matches!(self, Self::Inbound { .. });
        let is_local = source.is_some_and(|source| source.to_canonical().is_loopback());
        if is_inbound && ip.is_loopback() && !is_local {
            return Some(format!(
                "{ip} is reached from the pod alone: pass --src 127.0.0.1, or one of the pod's addresses to --dst"
            ));
        }
        (is_inbound && target.has_address(ip) == Some(false)).then(|| {
            let pod = &target.name;
            format!("{ip} is no address of pod {pod}: no inbound connection goes there")
        })
    }

    fn destination(&self) -> &Destination {
        match self {
            Self::Outbound { dst, .. } | Self::Inbound { dst, .. } => dst,
        }
    }

    /// Whether it is a DNS query, by its port.
    fn is_query(&self, destination: SocketAddr) -> bool {
        matches!(self, Self::Outbound { .. }) && destination.port() == DNS_PORT
    }

    /// Who makes an outbound connection.
    fn owner(&self, policy: &Policy) -> Option<Owner> {
        match self {
            Self::Outbound { uid, gid, .. } => Some(Owner::new(policy, *uid, *gid)),
            Self::Inbound { .. } => None,
        }
    }
}

/// What is shown.
#[derive(Debug, Serialize)]
struct ExplainReport {
    #[serde(flatten)]
    answer: Explanation,
    /// Whose rules they are.
    dialect: String,
    /// Whether the sidecar listens on the port of a redirect now, if that is known.
    sidecar_listens: Option<bool>,
    /// `namespace/name`.
    pod: String,
    /// Where the connection goes.
    destination: SocketAddr,
    /// All addresses of the name that was given; the first one is the destination.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    resolved: Vec<IpAddr>,
    /// Who makes an outbound connection.
    #[serde(skip_serializing_if = "Option::is_none")]
    owner: Option<Owner>,
    /// Whether agents would enroll the pod, if it is from a manifest.
    #[serde(skip_serializing_if = "Option::is_none")]
    enrollment: Option<Enrollment>,
    /// What to know of the policy that answers.
    #[serde(skip_serializing_if = "Option::is_none")]
    remark: Option<String>,
    /// What to know of the policy that is no mistake.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    notes: Vec<String>,
}

pub(super) async fn run(options: Options) -> Result<ExitCode> {
    let direction = &options.direction;
    let target = Target::find(&options.which).await?;
    let resolved = direction.destination().resolve()?;
    if let Some(problem) = direction.contradiction(&target, resolved.address) {
        usage(&problem);
    }
    let answer = answer::answer(&target, direction, resolved.address);
    let mut remark = target.remark.clone();
    // The agent reads it for a running pod.
    let is_described = target.enrollment.is_some();
    if is_described && direction.is_query(resolved.address) && target.policy.awaits_resolv_conf() {
        let text = "which servers the pod's resolv.conf has is not known here, and queries to others are not captured: pass them with --dns-server IP";
        output::remark(text);
        remark.get_or_insert(text.to_owned());
    }
    let listeners = target.policy.listener_ports();
    let sidecar_listens = match (answer.port(), &target.live) {
        // Of other ports, as that of DNS, it is not known.
        (Some(port), Some(live)) if listeners.contains(&port) => {
            live.listens(port, Addr::from(resolved.address.ip()).family())?
        }
        _ => None,
    };
    let report = ExplainReport {
        answer,
        sidecar_listens,
        dialect: target.policy.dialect.to_string(),
        pod: target.name.clone(),
        destination: resolved.address,
        resolved: resolved.of_name.clone(),
        owner: direction.owner(&target.policy),
        enrollment: target.enrollment.clone(),
        remark,
        notes: target.policy.notes(),
    };
    if !output::print_value(options.output, &report)? {
        let lines = lines(&report, &target, direction.destination(), &resolved);
        print(lines, &report, options.output == Format::Wide)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// A label and a text.
type Line = (&'static str, String);

fn lines(
    report: &ExplainReport,
    target: &Target,
    named: &Destination,
    resolved: &Resolved,
) -> Vec<Line> {
    let mut lines = report.answer.lines();
    lines.push(("dialect", report.dialect.clone()));
    if report.sidecar_listens == Some(false) {
        let refused = "does not listen on that port now: the connection is refused";
        lines.push(("sidecar", refused.to_owned()));
    }
    if let Some(enrollment) = &report.enrollment {
        lines.push(("enrolled", enrollment.to_string()));
    }
    lines.extend(report.notes.iter().map(|note| ("note", note.clone())));
    if let Some(remark) = report.owner.and_then(|owner| owner.remark(&target.policy)) {
        lines.push(("owner", remark));
    }
    if let Some((first, others)) = resolved.of_name.split_first() {
        let others: Vec<String> = others.iter().map(IpAddr::to_string).collect();
        let others = if others.is_empty() {
            String::new()
        } else {
            format!(
                ", the first of its addresses; the others: {}",
                others.join(", ")
            )
        };
        lines.push(("address", format!("{named} is {first}{others}")));
    }
    lines
}

fn print(mut lines: Vec<Line>, report: &ExplainReport, wide: bool) -> Result<()> {
    if wide {
        lines.push(("name", report.answer.name().to_owned()));
        lines.push(("pod", report.pod.clone()));
        lines.push(("to", report.destination.to_string()));
        let owner = report.owner.map(|owner| owner.numbers());
        lines.extend(owner.map(|numbers| ("by", numbers)));
    }
    for (label, text) in lines {
        output::print(format!("{label:<9}{text}"))?;
    }
    Ok(())
}
