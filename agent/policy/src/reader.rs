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
mod tests {
    use super::{Readers, Scope, check};

    fn words(line: &str) -> Vec<String> {
        line.split_whitespace().map(str::to_owned).collect()
    }

    #[test]
    fn a_reader_of_the_node_runs_what_changes_nothing() {
        for line in [
            "status -o json",
            "pods -o json",
            "why shop/web -o json",
            "explain shop/web outbound --dst 10.0.0.1:80 --uid=5",
            "rules shop/web -6",
        ] {
            assert_eq!(check(&words(line), &Scope::Node), Ok(()), "{line}");
        }
        for line in [
            "",
            "cleanup",
            "agent",
            "trace shop/web",
            "foreign-files",
            "status --socket /run/other",
            "status --socket=/run/other",
            "rules --manifest /etc/shadow",
            "rules --manifest=-",
            "status --wait shop/web",
            "pods -njson",
            "pods --only-namespace other",
            "explain shop/web outbound --dst example.com:80",
            "explain shop/web outbound --dst=example.com:80",
            "cost --interval 1h",
            "--help",
        ] {
            assert!(check(&words(line), &Scope::Node).is_err(), "{line}");
        }
    }

    #[test]
    fn a_reader_of_a_namespace_asks_about_pods() {
        let shop = Scope::Namespace("shop".to_owned());
        for line in ["pods", "why shop/web", "connections", "events -n shop"] {
            assert_eq!(check(&words(line), &shop), Ok(()), "{line}");
        }
        for line in [
            "status -o json",
            "cost",
            "version",
            "pods --only-namespace=other",
        ] {
            assert!(check(&words(line), &shop).is_err(), "{line}");
        }
    }

    #[test]
    fn a_reader_is_a_service_account_of_the_name() {
        let of = |user: &str| Scope::of_user(user, "mesh", Readers::Namespaces);
        let (mesh, shop) = (
            "system:serviceaccount:mesh:sidetrack-reader",
            "system:serviceaccount:shop:sidetrack-reader",
        );
        assert_eq!(of(mesh), Some(Scope::Node));
        assert_eq!(of(shop), Some(Scope::Namespace("shop".to_owned())));
        for (readers, wanted) in [(Readers::Cluster, Some(Scope::Node)), (Readers::None, None)] {
            assert_eq!(Scope::of_user(mesh, "mesh", readers), wanted);
            assert_eq!(Scope::of_user(shop, "mesh", readers), None);
        }
        for other in [
            "system:serviceaccount:mesh:sidetrack",
            "system:serviceaccount::sidetrack-reader",
            "system:serviceaccount:a:b:sidetrack-reader",
            "sidetrack-reader",
            "admin",
            "",
        ] {
            assert_eq!(of(other), None, "{other}");
        }
    }
}
