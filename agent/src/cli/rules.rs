//! `sidetrack rules`: a pod's policy as the rules istio-iptables would have programmed.

use std::{collections::BTreeMap, process::ExitCode};

use anyhow::{Context as _, Result};
use clap::{Args, ValueEnum};
use comfy_table::Table;
use serde::Serialize;
use sidetrack_common::{addr::Family, count::ANY_POLICY, rule::Rule};

use super::{
    Format, Places, output,
    pod_name::PodName,
    target::{Live, Target, Which},
};
use sidetrack_policy::rules::{self, Line};

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  sidetrack rules shop/web-0
  sidetrack rules -n shop web-0 -6
  sidetrack rules --manifest web.yaml -o iptables")]
pub(super) struct Options {
    #[command(flatten)]
    which: Which,
    /// Form of the output
    #[arg(
        short = 'o',
        long,
        visible_alias = "output",
        value_enum,
        default_value_t
    )]
    format: Form,
    /// The IPv6 rules
    #[arg(short = '6', long)]
    ipv6: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum Form {
    /// For people, with the connections each rule has decided
    #[default]
    Table,
    /// For people, with the rules' names
    Wide,
    /// Input for iptables-restore (ip6tables-restore with -6)
    Iptables,
    /// For programs
    Json,
    /// For programs: the same content as JSON
    Yaml,
}

/// What a row stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Scope {
    /// A line of the rules.
    Line,
    /// A reason that no line stands for.
    Reason,
    /// A rule or reason of the policies that the pod has had before, all together.
    Earlier,
    /// A rule or reason, for which the pod had no room for more counters: of whatever line and policy.
    AnyLine,
}

/// A rule in JSON.
#[derive(Debug, Serialize)]
struct Row {
    scope: Scope,
    chain: Option<&'static str>,
    rule: String,
    name: Option<&'static str>,
    connections: Option<u64>,
    /// Some of its connections may be among those of [`Scope::AnyLine`].
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    at_least: bool,
}

pub(super) async fn run(options: Options) -> Result<ExitCode> {
    let target = Target::find(&options.which).await?;
    let family = if options.ipv6 { Family::V6 } else { Family::V4 };
    let is_table = matches!(options.format, Form::Table | Form::Wide);
    if let Some(why) = inactive(&target, family).filter(|_| !is_table) {
        output::remark(why);
    }
    if options.format == Form::Iptables {
        output::print(rules::restore(&target.policy, family).trim_end())?;
        return Ok(ExitCode::SUCCESS);
    }
    let counted = target.live.as_ref().map(|live| Counted::read(live, family));
    let rows = rows(&rules::all(&target.policy, family), counted.transpose()?);
    let format = match options.format {
        Form::Json => Format::Json,
        Form::Yaml => Format::Yaml,
        Form::Wide => Format::Wide,
        Form::Table | Form::Iptables => Format::Table,
    };
    if !output::print_value(format, &rows)? {
        let wide = format == Format::Wide;
        let terminal = output::terminal_width();
        output::print(text(&target, &rows, family, wide, terminal))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Why the rules of a family may not be active.
fn inactive(target: &Target, family: Family) -> Option<&'static str> {
    match (family, target.ipv6) {
        (Family::V6, Some(false)) => {
            Some("The pod's IPv6 connections are not redirected; these rules are not active.")
        }
        (Family::V6, None) => {
            Some("Whether these rules are active depends on the pod's addresses: pass --pod-ip IP")
        }
        _ => None,
    }
}

/// What the kernel has counted for a pod and family.
#[derive(Debug, Default)]
struct Counted {
    /// By the policy in force: by rule and position.
    now: BTreeMap<(u32, u32), u64>,
    /// By those before: by rule.
    earlier: BTreeMap<u32, u64>,
    /// By any of them, without room for a counter: by rule.
    any_line: BTreeMap<u32, u64>,
}

impl Counted {
    fn read(live: &Live, family: Family) -> Result<Self> {
        let row = live
            .maps
            .pods
            .get(&live.netns)
            .context("read the pod's row")?;
        let policy = row.map(|row| row.policy);
        let mut counted = Self::default();
        for (key, count) in live.maps.connection_counts().context("read the counters")? {
            if key.netns != live.netns || key.family != family as u32 {
                continue;
            }
            let sum = if key.policy == ANY_POLICY {
                counted.any_line.entry(key.rule).or_default()
            } else if policy == Some(key.policy) {
                counted.now.entry((key.rule, key.index)).or_default()
            } else {
                counted.earlier.entry(key.rule).or_default()
            };
            *sum += count;
        }
        Ok(counted)
    }
}

/// The lines, and after them what was counted by reason, or without a line of this policy.
fn rows(lines: &[Line], counted: Option<Counted>) -> Vec<Row> {
    let mut rows: Vec<Row> = Vec::new();
    let mut counted_now = counted.as_ref().map(|counted| counted.now.clone());
    let is_at_least = |rule: Rule| {
        let counted = counted.as_ref();
        counted.is_some_and(|it| it.any_line.contains_key(&(rule as u32)))
    };
    for line in lines {
        let count = |now: &mut BTreeMap<(u32, u32), u64>| {
            let (rule, index) = line.decision?;
            Some(now.remove(&(rule as u32, index)).unwrap_or_default())
        };
        rows.push(Row {
            scope: Scope::Line,
            chain: Some(line.chain),
            rule: line.command(),
            name: line.decision.map(|(rule, _)| rule.name()),
            connections: counted_now.as_mut().and_then(count),
            at_least: line.decision.is_some_and(|(rule, _)| is_at_least(rule)),
        });
    }
    let Some(counted) = &counted else { return rows };
    let mut reasons: BTreeMap<u32, u64> = BTreeMap::new();
    for ((rule, _), count) in counted_now.unwrap_or_default() {
        *reasons.entry(rule).or_default() += count;
    }
    let others = [
        (Scope::Reason, &reasons),
        (Scope::Earlier, &counted.earlier),
        (Scope::AnyLine, &counted.any_line),
    ];
    for (scope, counts) in others {
        rows.extend(counts.iter().filter_map(|(number, count)| {
            let rule = Rule::from_number(*number)?;
            Some(Row {
                scope,
                chain: None,
                rule: rule.describe().to_owned(),
                name: Some(rule.name()),
                connections: Some(*count),
                at_least: scope != Scope::AnyLine && is_at_least(rule),
            })
        }));
    }
    rows
}

/// For people. Tables wrap at the width of a terminal.
fn text(
    target: &Target,
    rows: &[Row],
    family: Family,
    wide: bool,
    terminal: Option<usize>,
) -> String {
    let mut lines = vec![format!(
        "pod {}, dialect {}",
        target.name, target.policy.dialect
    )];
    lines.extend(inactive(target, family).map(str::to_owned));
    if let Some(enrollment) = &target.enrollment {
        lines.push(format!("enrolled {enrollment}"));
    }
    for note in target.policy.notes() {
        lines.push(format!("Note: {note}."));
    }
    lines.push(String::new());
    for (scope, heading) in [
        (Scope::Line, None),
        (
            Scope::Reason,
            Some(
                "By reason (a refused connection is counted here and at the line that redirected it):",
            ),
        ),
        (
            Scope::Earlier,
            Some("Decided by the policies that the pod had before this one:"),
        ),
        (
            Scope::AnyLine,
            Some(
                "Counted by rule alone, because the pod has no room for more counters. Rows above that end with + may have some of them:",
            ),
        ),
    ] {
        let of_scope: Vec<&Row> = rows.iter().filter(|row| row.scope == scope).collect();
        if of_scope.is_empty() {
            continue;
        }
        if let Some(heading) = heading {
            lines.push(format!("\n{heading}"));
        }
        lines.push(output::table_text(
            &section(scope, &of_scope, wide),
            terminal,
        ));
    }
    lines.join("\n")
}

/// The rules of a known pod, of each family that is intercepted, as a text for people.
pub(super) async fn of_pod(places: &Places, pod: &PodName) -> Result<String> {
    let target = Target::of_agent(places, pod).await?;
    let mut parts: Vec<String> = target.remark.clone().into_iter().collect();
    for family in [Family::V4, Family::V6] {
        if family == Family::V6 && target.ipv6 != Some(true) {
            continue;
        }
        let counted = target.live.as_ref().map(|live| Counted::read(live, family));
        let rows = rows(&rules::all(&target.policy, family), counted.transpose()?);
        let heading = if family == Family::V6 { "IPv6: " } else { "" };
        let text = text(&target, &rows, family, false, None);
        parts.push(format!("{heading}{text}"));
    }
    Ok(parts.join("\n\n"))
}

fn section(scope: Scope, rows: &[&Row], wide: bool) -> Table {
    let what = if scope == Scope::Line {
        "RULE"
    } else {
        "REASON"
    };
    // A reason has its name in its text.
    let wide = wide && scope == Scope::Line;
    let name: &[&str] = if wide { &["NAME"] } else { &[] };
    let mut table = output::table([&["CONNECTIONS"], name, &[what]].concat());
    for row in rows {
        let more = if row.at_least { "+" } else { "" };
        let count = row.connections.map(|count| format!("{count}{more}"));
        let count = output::or_dash(count);
        let text = match (scope, row.name) {
            (Scope::Reason | Scope::Earlier | Scope::AnyLine, Some(name)) => {
                format!("{name}: {}", row.rule)
            }
            _ => row.rule.clone(),
        };
        let name = wide.then(|| row.name.unwrap_or("-").to_owned());
        table.add_row([Some(count), name, Some(text)].into_iter().flatten());
    }
    table
}

#[cfg(test)]
mod tests;
