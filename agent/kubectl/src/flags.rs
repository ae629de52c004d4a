//! Flags that several commands take. They are named as kubectl's own.

use std::{path::PathBuf, time::Duration};

use clap::{Args, builder::NonEmptyStringValueParser};

pub use sidetrack_base::duration::positive_duration;
pub use sidetrack_live::output::Format;

/// Over the flags of every command.
const CLUSTER: &str = "Cluster and agents";

/// Where the cluster is, and how its agents are asked.
#[derive(Clone, Debug, Args)]
pub struct Connect {
    /// The kubeconfig file [default: as kubectl finds it]
    #[arg(long, value_name = "FILE", help_heading = CLUSTER, global = true)]
    pub kubeconfig: Option<PathBuf>,
    /// The kubeconfig's context [default: its current one]
    #[arg(long, value_name = "NAME", help_heading = CLUSTER, global = true)]
    pub context: Option<String>,
    /// Ask the API server as this user, who needs the rights of the command
    #[arg(long = "as", value_name = "USER", value_parser = NonEmptyStringValueParser::new(), help_heading = CLUSTER, global = true)]
    pub as_user: Option<String>,
    /// Ask as a member of this group; may be given several times
    #[arg(long = "as-group", value_name = "GROUP", value_parser = NonEmptyStringValueParser::new(), requires = "as_user", help_heading = CLUSTER, global = true)]
    pub as_groups: Vec<String>,
    /// The namespace of pods [default: that of the context]
    #[arg(short, long, value_name = "NAME", help_heading = CLUSTER, global = true)]
    pub namespace: Option<String>,
    /// The namespace of the agents
    #[arg(
        long,
        value_name = "NAME",
        default_value = "sidetrack-system",
        help_heading = CLUSTER,
        global = true
    )]
    pub agents_namespace: String,
    /// How long one agent may take to answer, such as 5s or 500ms
    #[arg(long, value_name = "DURATION", default_value = "5s", value_parser = positive_duration, help_heading = CLUSTER, global = true)]
    pub timeout: Duration,
    /// How many agents are asked at a time
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..=256), help_heading = CLUSTER, global = true)]
    pub parallel: u16,
}

/// Which pods.
#[derive(Clone, Debug, Args)]
pub struct Which {
    /// Pods of all namespaces
    #[arg(short = 'A', long, conflicts_with = "namespace")]
    pub all_namespaces: bool,
    /// Pods with these labels, such as app=web
    #[arg(short = 'l', long, value_name = "LABELS")]
    pub selector: Option<String>,
}

/// The form of the output as a word for an agent's command; none for its default.
pub fn output_word(format: Format) -> Option<String> {
    (format != Format::Table).then(|| format!("--output={}", sidetrack_live::trace::name(format)))
}
