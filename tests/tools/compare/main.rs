//! Holds sidetrack to the real iptables: the same connections through two identical pods, one with
//! the rule text loaded by iptables-restore, one enrolled. What anybody at either end can see is
//! compared. Then both make a known load, and what counts it is compared.

mod compare;
mod crowd;
mod datagrams;
mod explain;
mod injected;
mod load;
mod matrix;
mod pair;
mod policies;
mod profiles;
mod report;
#[path = "../../../agent/policy/tests/rule_text"]
mod rule_text {
    pub mod netfilter;
}
mod target;

use std::{path::PathBuf, process::ExitCode};

use anyhow::Result;
use clap::{Parser, builder::PossibleValuesParser};
use lab::{ledger, private};
use sidetrack_policy::mesh::MeshName;

use crate::{
    matrix::Family,
    pair::PodPair,
    policies::{BuiltIn, CURRENT, DIALECTS, LOADS, OF_MESHES, OfMesh, POLICIES},
    profiles::{PROFILES, Profile},
    report::{Format, Report},
    target::Target,
};

/// What is compared; everything unless it is narrowed down.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask compare")]
struct Options {
    /// Only this dialect
    #[arg(long, value_parser = PossibleValuesParser::new(DIALECTS), conflicts_with = "manifest")]
    dialect: Option<String>,
    /// Only these meshes' policies; all are compared without it
    #[arg(long, value_parser = PossibleValuesParser::new(mesh_names()), conflicts_with_all = ["manifest", "dialect"])]
    mesh: Vec<String>,
    /// Only this family
    #[arg(long, value_parser = ["v4", "v6"])]
    family: Option<String>,
    /// Only this policy; `all` for every one, also under a profile
    #[arg(
        long,
        value_parser = PossibleValuesParser::new(names()),
        conflicts_with = "manifest"
    )]
    policy: Option<String>,
    /// Under settings of real nodes and pods, most often with a part of the policies; `all` for all of them
    #[arg(
        long,
        value_name = "NAME",
        value_parser = PossibleValuesParser::new(profile_names()),
        conflicts_with = "manifest"
    )]
    profile: Option<String>,
    /// The manifest of any pod, to compare with the rules given
    #[arg(long, value_name = "FILE", requires = "rules")]
    manifest: Option<PathBuf>,
    /// Its rules, as iptables-save prints them
    #[arg(long, value_name = "FILE", requires = "manifest")]
    rules: Option<PathBuf>,
    /// Its IPv6 rules, as ip6tables-save prints them; without them only IPv4 is compared
    #[arg(long, value_name = "FILE", requires = "manifest")]
    rules6: Option<PathBuf>,
    /// Pods as injectors leave them, with their meshes' own rules: DIR/*/NAME.yaml with NAME.v4 and NAME.v6
    #[arg(long, value_name = "DIR", conflicts_with_all = ["dialect", "mesh", "family", "policy", "manifest"])]
    injected: Option<PathBuf>,
    /// Form of the output
    #[arg(short, long, value_enum, default_value = "table")]
    output: Format,
}

impl Options {
    /// The profiles that are asked for.
    fn profiles(&self) -> Vec<&'static Profile> {
        let Some(wanted) = &self.profile else {
            return Vec::new();
        };
        let all = PROFILES.iter();
        all.filter(|profile| wanted == ALL || wanted == profile.name)
            .collect()
    }
}

/// Names of profiles, and the one for all of them.
fn profile_names() -> impl Iterator<Item = &'static str> {
    let names = PROFILES.iter().map(|profile| profile.name);
    names.chain([ALL])
}

/// What stands for every profile, or every policy.
const ALL: &str = "all";

/// Meshes with policies here.
fn mesh_names() -> impl Iterator<Item = &'static str> {
    let all = MeshName::ALL.into_iter().chain([MeshName::Ambient]);
    all.map(MeshName::name)
}

/// All policies.
fn names() -> Vec<&'static str> {
    let of_istio = POLICIES.iter().chain(LOADS).map(|policy| policy.name);
    of_istio
        .chain(OF_MESHES.iter().map(|policy| policy.name))
        .chain([ALL])
        .collect()
}

fn main() -> ExitCode {
    match run(&Options::parse()) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("compare: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(options: &Options) -> Result<ExitCode> {
    if let Some(dir) = &options.injected {
        private::require_root()?;
        return injected::run(dir);
    }
    let foreign = match (&options.manifest, &options.rules) {
        (Some(manifest), Some(rules)) => {
            let target = Target::foreign(manifest, rules, options.rules6.as_deref())?;
            let dialect = target.policy.dialect.to_string();
            Some((target, dialect))
        }
        _ => None,
    };
    private::require_root()?;
    private::enter()?;
    ledger::sweep()?;
    if let Some((target, dialect)) = foreign {
        let mut pair = PodPair::new(None)?;
        let mut report = Report::new(options.output, &[&dialect]);
        report.policy(&target.name);
        compare_one(
            &mut pair,
            &target,
            &dialect,
            options,
            Part::Matrix,
            &mut report,
        )?;
        return report.close();
    }
    let profiles = options.profiles();
    let selections: Vec<Selection> = match profiles.as_slice() {
        [] => vec![Selection::new(options, None)],
        some => some
            .iter()
            .map(|profile| Selection::new(options, Some(profile)))
            .collect(),
    };
    let mut report = Report::new(options.output, &selections[0].columns());
    for selection in &selections {
        if let Some(profile) = selection.profile {
            report.profile(profile);
        }
        selection.compare(options, &mut report)?;
    }
    report.close()
}

/// What is compared in one pair of pods.
struct Selection {
    profile: Option<&'static Profile>,
    dialects: Vec<&'static str>,
    of_istio: Vec<(&'static BuiltIn, Part)>,
    of_meshes: Vec<&'static OfMesh>,
}

impl Selection {
    fn new(options: &Options, profile: Option<&'static Profile>) -> Self {
        let is_chosen = |mesh: MeshName| {
            options.mesh.is_empty() || options.mesh.iter().any(|wanted| wanted == mesh.name())
        };
        let is_of_profile = |name: &str| profile.is_none_or(|profile| profile.has_policy(name));
        let is_wanted = |name: &str| match &options.policy {
            Some(wanted) => wanted == ALL || wanted == name,
            None => is_of_profile(name),
        };
        let has_dialect = |dialect: &str| match &options.dialect {
            Some(wanted) => wanted == dialect,
            None => profile.is_none() || dialect == CURRENT,
        };
        let matrix = POLICIES.iter().map(|policy| (policy, Part::Matrix));
        let load = LOADS.iter().map(|policy| (policy, Part::Load));
        let dialects = DIALECTS
            .into_iter()
            .filter(|dialect| is_chosen(MeshName::Istio) && has_dialect(dialect));
        let of_meshes = OF_MESHES.iter().filter(|policy| {
            options.dialect.is_none() && is_chosen(policy.mesh) && is_wanted(policy.name)
        });
        let dialects: Vec<_> = dialects.collect();
        Self {
            profile,
            of_istio: matrix
                .chain(load)
                .filter(|(policy, _)| !dialects.is_empty() && is_wanted(policy.name))
                .collect(),
            dialects,
            of_meshes: of_meshes.collect(),
        }
    }

    /// Those of the table.
    fn columns(&self) -> Vec<&'static str> {
        let own = (!self.of_meshes.is_empty()).then_some("own");
        self.dialects.iter().copied().chain(own).collect()
    }

    fn compare(&self, options: &Options, report: &mut Report) -> Result<()> {
        let mut pair = PodPair::new(self.profile)?;
        for (policy, part) in &self.of_istio {
            report.policy(policy.name);
            for dialect in &self.dialects {
                let target = Target::built_in(policy, dialect)?;
                if target.is_rejected() {
                    report.end(0)?;
                    continue;
                }
                self.compare_one(&mut pair, &target, (dialect, *part), options, report)?;
            }
            if !self.of_meshes.is_empty() {
                report.end(0)?;
            }
        }
        for policy in &self.of_meshes {
            report.policy(policy.name);
            for _ in &self.dialects {
                report.end(0)?;
            }
            let target = Target::of_mesh(policy)?;
            let part = if policy.is_load {
                Part::Load
            } else {
                Part::Matrix
            };
            self.compare_one(&mut pair, &target, ("own", part), options, report)?;
        }
        Ok(())
    }

    fn compare_one(
        &self,
        pair: &mut PodPair,
        target: &Target,
        (dialect, part): (&str, Part),
        options: &Options,
        report: &mut Report,
    ) -> Result<()> {
        compare_one(pair, target, dialect, options, part, report)?;
        if self.profile.is_some_and(|it| it.crowd().is_some()) {
            // Its ports are in TIME_WAIT, for which other pods need not wait.
            *pair = PodPair::new(self.profile)?;
        }
        Ok(())
    }
}

/// What is compared under a policy.
#[derive(Clone, Copy)]
enum Part {
    /// What becomes of single connections.
    Matrix,
    /// What many of them are counted as.
    Load,
}

fn compare_one(
    pair: &mut PodPair,
    target: &Target,
    dialect: &str,
    options: &Options,
    part: Part,
    report: &mut Report,
) -> Result<()> {
    pair.set(target)?;
    let mut families = 0;
    for (family, name) in [(Family::V4, "v4"), (Family::V6, "v6")] {
        let chosen = options.family.as_ref().is_none_or(|wanted| wanted == name);
        let has_oracle = family == Family::V4 || target.has_v6();
        if chosen && has_oracle {
            families += 1;
            report.begin(&target.name, dialect, name);
            match part {
                Part::Matrix => {
                    compare::run(pair, family, target, report)?;
                    crowd::run(pair, family, target, report)?;
                    datagrams::run(pair, family, target, report)?;
                }
                Part::Load => load::run(pair, family, target, report)?,
            }
        }
    }
    report.end(families)
}
