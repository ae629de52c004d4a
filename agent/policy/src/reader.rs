//! What may be asked of an agent without the right to run commands in its container: by the API server's proxy, at
//! the port for metrics, with a token of a service account that has no rights.
//!
//! A user who may make such a token is a reader: of all that an agent says where the account is in the agents' own
//! namespace, of the pods of one namespace where it is in that. The kubectl plugin asks, and the agent decides by [`check`].

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

use crate::pod_ref::{LONGEST_NAMESPACE, is_name};

/// The service account, in the agents' namespace or in one whose pods may be read.
pub const SERVICE_ACCOUNT: &str = "sidetrack-reader";
/// Where an agent answers.
pub const PATH: &str = "/v1/read";
/// The field of a request with the token. The API server keeps `authorization` to itself.
pub const TOKEN: &str = "x-sidetrack-token";

/// Which users agents answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
pub enum Readers {
    /// None.
    #[default]
    None,
    /// Those of the service account in the agents' namespace.
    Cluster,
    /// Also those of namespaces, about their pods: who may make service accounts or pods in a namespace makes himself one.
    Namespaces,
}

/// Commands that change nothing, and whether they are about pods alone.
const COMMANDS: [(&str, bool); 9] = [
    ("connections", true),
    ("cost", false),
    ("events", true),
    ("explain", true),
    ("pods", true),
    ("rules", true),
    ("status", false),
    ("version", false),
    ("why", true),
];

/// Their flags, but those that name a file or another agent's socket, that wait, or that say what may be seen.
const FLAGS: [&str; 18] = [
    "--all",
    "--dst",
    "--format",
    "--gid",
    "--iface",
    "--ipv6",
    "--kind",
    "--limit",
    "--mark",
    "--namespace",
    "--output",
    "--protocol",
    "--since",
    "--src",
    "--uid",
    "-6",
    "-n",
    "-o",
];

/// The audience of tokens for the agent of one node. An agent that somebody else controls cannot use them for another.
#[must_use]
pub fn audience(node: &str) -> String {
    format!("sidetrack.dev/node/{node}")
}

/// What a command has printed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Answer {
    /// Its exit code.
    pub code: i32,
    /// Its output.
    pub stdout: String,
    /// Its errors and remarks.
    pub stderr: String,
}

/// What a reader may see.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Everything on the node.
    Node,
    /// The pods of this namespace.
    Namespace(String),
}

impl Scope {
    /// That of a user, as the API server names the one to whom a token belongs; none if it is no reader.
    #[must_use]
    pub fn of_user(user: &str, agents_namespace: &str, readers: Readers) -> Option<Self> {
        let account = user.strip_prefix("system:serviceaccount:")?;
        let (namespace, name) = account.split_once(':')?;
        if name != SERVICE_ACCOUNT || !is_name(namespace, LONGEST_NAMESPACE) {
            return None;
        }
        match readers {
            Readers::Cluster | Readers::Namespaces if namespace == agents_namespace => {
                Some(Self::Node)
            }
            Readers::Namespaces => Some(Self::Namespace(namespace.to_owned())),
            Readers::None | Readers::Cluster => None,
        }
    }
}

/// Whether a reader may run this command. That it shows pods of the reader's namespace alone is up to the command itself.
///
/// # Errors
/// Why not.
pub fn check(words: &[String], scope: &Scope) -> Result<(), String> {
    let command = words.first().map(String::as_str).unwrap_or_default();
    let known = COMMANDS.iter().find(|(name, _)| *name == command);
    let Some((_, is_about_pods)) = known else {
        return Err(format!("readers may not run `{command}`"));
    };
    if matches!(scope, Scope::Namespace(_)) && !is_about_pods {
        return Err(format!("`{command}` is not about pods of one namespace"));
    }
    let flags = words.iter().filter(|word| word.starts_with('-'));
    let mut names = flags.map(|word| match word.strip_prefix("-o") {
        // As in -oyaml.
        Some(_) => "-o",
        None => word.split('=').next().unwrap_or_default(),
    });
    if let Some(other) = names.find(|name| !FLAGS.contains(name)) {
        return Err(format!("readers may not use {other}"));
    }
    // A name would be looked up by the agent, by its DNS servers and in its network.
    let after = words.iter().zip(&words[1..]);
    let after = after.filter_map(|(flag, value)| (flag == "--dst").then_some(value.as_str()));
    let attached = words.iter().filter_map(|word| word.strip_prefix("--dst="));
    let is_address = |value: &str| value.parse::<SocketAddr>().is_ok();
    match after.chain(attached).find(|value| !is_address(value)) {
        Some(name) => Err(format!(
            "readers give --dst an address and a port, not {name}"
        )),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests;
