//! `sidetrack trace`: connections as they are decided.

use std::{collections::BTreeMap, ops::ControlFlow, process::ExitCode, time::Duration};

use anyhow::{Context as _, Result};
use clap::{Args, ValueEnum};
use ipnet::IpNet;
use sidetrack_common::rule::Rule;

use super::{
    Format, Places,
    duration::duration,
    output,
    pod_name::{NamespaceFlag, PodName},
    pods,
};
use crate::{
    api::{TraceEvent, TraceLine},
    client::Client,
    runtime::until_signal,
    trace::Filter,
};

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
    #[arg(short, long, value_name = "NAMESPACE")]
    namespace: Option<String>,
    /// Only connections that were refused, or that a sidecar did not accept
    #[arg(long)]
    refused: bool,
    /// Only one direction
    #[arg(long, value_enum)]
    direction: Option<Direction>,
    /// Only one verdict
    #[arg(long, value_enum)]
    verdict: Option<Verdict>,
    /// Only one rule or reason, by the name that trace shows, such as out-all
    #[arg(long, value_name = "NAME", value_parser = rule_name)]
    rule: Option<String>,
    /// Only this dialed port
    #[arg(long, value_name = "PORT")]
    port: Option<u16>,
    /// Only this address or range at either end
    #[arg(long, value_name = "IP|CIDR", value_parser = address)]
    address: Option<IpNet>,
    /// Only this process: its id, or its name of at most 15 characters
    #[arg(long, value_name = "PID|NAME")]
    process: Option<String>,
    /// End after that long, such as 30s, instead of at Ctrl-C
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    duration: Option<Duration>,
    /// End after that many connections
    #[arg(long, value_name = "NUMBER")]
    count: Option<u64>,
    #[command(flatten)]
    places: Places,
    /// Form of the output
    #[arg(short, long, value_enum, default_value_t)]
    output: Format,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Direction {
    Outbound,
    Inbound,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Verdict {
    /// To the sidecar
    Redirect,
    /// To its destination directly
    Untouched,
    /// By sidetrack
    Refuse,
    /// Redirected, and the sidecar did not accept it
    Failed,
    /// Redirected, and closed by the application before the sidecar accepted it
    GivenUp,
}

/// The name of a value, as on the command line.
fn name(value: impl ValueEnum) -> String {
    let value = value.to_possible_value();
    value.map_or_else(String::new, |value| value.get_name().to_owned())
}

fn rule_name(text: &str) -> Result<String, String> {
    if Rule::from_name(text).is_some() {
        return Ok(text.to_owned());
    }
    let names: Vec<&str> = Rule::ALL.iter().map(|rule| rule.name()).collect();
    Err(format!("no such rule; there are {}", names.join(", ")))
}

fn address(text: &str) -> Result<IpNet, String> {
    if let Ok(ip) = text.parse::<std::net::IpAddr>() {
        return Ok(ip.into());
    }
    text.parse()
        .map_err(|_| "write an address or a range such as 10.0.0.0/8".to_owned())
}

impl Options {
    /// The pod's full name. One that is named with its namespace need not be known yet.
    async fn pod(&self) -> Result<Option<String>> {
        let namespace = NamespaceFlag::from(self.namespace.clone());
        let Some(pod) = self.pod.as_ref().map(|pod| namespace.complete(pod)) else {
            return Ok(None);
        };
        if pod.has_namespace() {
            return Ok(Some(pod.to_string()));
        }
        let known = pods::known(&self.places).await?;
        Ok(Some(pods::named(known, &pod)?.full_name()))
    }

    fn filter(&self, pod: Option<String>) -> Filter {
        Filter {
            namespace: self.namespace.clone().filter(|_| pod.is_none()),
            pod,
            direction: self.direction.map(name),
            verdict: self.verdict.map(name),
            refused: self.refused,
            rule: self.rule.clone(),
            port: self.port,
            address: self.address,
            process: self.process.clone(),
        }
    }
}

pub(super) async fn run(options: Options) -> Result<ExitCode> {
    let query = serde_urlencoded::to_string(options.filter(options.pod().await?))
        .context("write the request")?;
    let client = Client::new(&options.places.socket);
    let mut shown = Summary::default();
    let path = format!("/v1/trace?{query}");
    let is_table = matches!(options.output, Format::Table | Format::Wide);
    let heading = || {
        if is_table {
            output::print(HEADER)?;
        }
        Ok(())
    };
    let lines = client.lines(&path, heading, |line: TraceLine| {
        match &line {
            TraceLine::Event(event) if is_table => output::print(row(event))?,
            TraceLine::Lost(count) if is_table => output::print(format!(
                "... {count} connections are missing here: they came faster than they could be read"
            ))?,
            _ => output::print_one(options.output, &line)?,
        }
        shown.add(&line);
        let is_last = options.count.is_some_and(|most| shown.events >= most);
        Ok(if is_last || output::is_closed() {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        })
    });
    let over = async {
        match options.duration {
            Some(duration) => tokio::time::sleep(duration).await,
            None => std::future::pending().await,
        }
    };
    let result = tokio::select! {
        result = lines => result,
        signal = until_signal() => Ok(signal?),
        () = over => Ok(()),
    };
    // On stderr, so that the output stays a list of connections.
    if result.is_ok() || shown.events > 0 {
        output::remark(shown.text());
    }
    result.map(|()| ExitCode::SUCCESS)
}

const HEADER: &str =
    "TIME (UTC)       POD                      VERDICT         RULE                    CONNECTION";

fn row(event: &TraceEvent) -> String {
    let time = event.time.get(11..26).unwrap_or(&event.time);
    let verdict = match event.port {
        Some(port) if event.verdict == "redirect" => format!("redirect {port}"),
        _ => event.verdict.clone(),
    };
    let from = event.process.as_ref().map(|process| {
        let id = |id: Option<u32>| id.map_or_else(|| "-".to_owned(), |id| id.to_string());
        format!(
            "{}[{}] {}:{} ",
            process.name,
            process.pid,
            id(process.uid),
            id(process.gid)
        )
    });
    let source = event.source.as_deref().unwrap_or_default();
    let error = event.errno.map(output::errno_text);
    let error = error.map(|text| format!(": {text}"));
    format!(
        "{time:<16} {:<24} {verdict:<15} {:<23} {}{source}{}{}{}",
        event.pod,
        event.rule,
        from.unwrap_or_default(),
        if event.direction == "inbound" {
            " => "
        } else {
            " -> "
        },
        event.destination,
        error.unwrap_or_default()
    )
}

/// What was shown.
#[derive(Debug, Default)]
struct Summary {
    events: u64,
    by_verdict: BTreeMap<String, u64>,
    lost: u64,
}

impl Summary {
    fn add(&mut self, line: &TraceLine) {
        match line {
            TraceLine::Event(event) => {
                self.events += 1;
                *self.by_verdict.entry(event.verdict.clone()).or_default() += 1;
            }
            TraceLine::Lost(count) => self.lost += count,
        }
    }

    fn text(&self) -> String {
        let verdicts: Vec<String> = self
            .by_verdict
            .iter()
            .map(|(verdict, count)| format!("{count} {verdict}"))
            .collect();
        let verdicts = if verdicts.is_empty() {
            String::new()
        } else {
            format!(": {}", verdicts.join(", "))
        };
        let lost = match self.lost {
            0 => "none missing".to_owned(),
            lost => format!("{lost} missing"),
        };
        format!("{} events{verdicts}; {lost}", self.events)
    }
}

#[cfg(test)]
mod tests {
    use super::{Summary, row};
    use crate::api::{Process, TraceEvent, TraceLine};

    fn event() -> TraceEvent {
        TraceEvent {
            time: "2026-01-02T03:04:05.678901Z".to_owned(),
            pod: "shop/web-0".to_owned(),
            direction: "outbound".to_owned(),
            verdict: "redirect".to_owned(),
            source: None,
            destination: "10.1.0.9:80".to_owned(),
            port: Some(15001),
            rule: "out-all".to_owned(),
            errno: None,
            process: Some(Process {
                pid: 42,
                name: "curl".to_owned(),
                uid: Some(1000),
                gid: None,
            }),
            socket: Some(1),
        }
    }

    #[test]
    fn a_row_says_who_connects_where() {
        assert_eq!(
            row(&event()),
            "03:04:05.678901  shop/web-0               redirect 15001  out-all                 curl[42] 1000:-  -> 10.1.0.9:80"
        );
        let inbound = TraceEvent {
            direction: "inbound".to_owned(),
            verdict: "refuse".to_owned(),
            rule: "no-listener".to_owned(),
            source: Some("10.0.0.2:40000".to_owned()),
            port: None,
            errno: Some(111),
            process: None,
            ..event()
        };
        assert!(
            row(&inbound).ends_with(
                "no-listener             10.0.0.2:40000 => 10.1.0.9:80: Connection refused"
            ),
            "{}",
            row(&inbound)
        );
    }

    #[test]
    fn the_summary_says_what_is_missing() {
        let mut summary = Summary::default();
        assert_eq!(summary.text(), "0 events; none missing");
        summary.add(&TraceLine::Event(Box::new(event())));
        summary.add(&TraceLine::Lost(7));
        assert_eq!(summary.text(), "1 events: 1 redirect; 7 missing");
    }
}
