//! What may be asked of an agent without the right to run commands in its container: by the API server's proxy, at
//! the port for metrics, with a token of a service account that has no rights.
//!
//! A user who may make such a token is a reader: of all that an agent says where the account is in the agents' own
//! namespace, of the pods of one namespace where it is in that. The kubectl plugin asks, and the agent decides by [`check`].

use serde::{Deserialize, Serialize};

use crate::pod_ref::{LONGEST_NAMESPACE, is_name};

/// The service account, in the agents' namespace or in one whose pods may be read.
pub const SERVICE_ACCOUNT: &str = "sidetrack-reader";
/// Where an agent answers.
pub const PATH: &str = "/v1/read";
/// The field of a request with the token. The API server keeps `authorization` to itself.
pub const TOKEN: &str = "x-sidetrack-token";

/// Commands that change nothing, and whether they may be about one pod or namespace only.
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

/// Their flags, but those that name a file or another agent's socket, or wait.
const FLAGS: [&str; 19] = [
    "--all",
    "--dst",
    "--format",
    "--gid",
    "--iface",
    "--interval",
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
    pub fn of_user(user: &str, agents_namespace: &str) -> Option<Self> {
        let account = user.strip_prefix("system:serviceaccount:")?;
        let (namespace, name) = account.split_once(':')?;
        if name != SERVICE_ACCOUNT || !is_name(namespace, LONGEST_NAMESPACE) {
            return None;
        }
        Some(if namespace == agents_namespace {
            Self::Node
        } else {
            Self::Namespace(namespace.to_owned())
        })
    }
}

/// Whether a reader may run this command.
///
/// # Errors
/// Why not.
pub fn check(words: &[String], scope: &Scope) -> Result<(), String> {
    let command = words.first().map(String::as_str).unwrap_or_default();
    let known = COMMANDS.iter().find(|(name, _)| *name == command);
    let Some((_, about_pods)) = known else {
        return Err(format!("readers may not run `{command}`"));
    };
    let flag = |word: &&String| word.starts_with('-');
    let flags = words.iter().filter(flag);
    let mut names = flags.map(|word| word.split('=').next().unwrap_or_default());
    if let Some(other) = names.find(|name| !FLAGS.contains(name)) {
        return Err(format!("readers may not use {other}"));
    }
    match scope {
        Scope::Node => Ok(()),
        Scope::Namespace(_) if !about_pods => {
            Err(format!("`{command}` is not about one namespace"))
        }
        Scope::Namespace(own) if names_only(&words[1..], own) => Ok(()),
        Scope::Namespace(own) => Err(format!(
            "this token is for pods of namespace {own}, which has to be named first"
        )),
    }
}

/// The namespace that a command is about, if it is named first.
#[must_use]
pub fn namespace_of(words: &[String]) -> Option<&str> {
    match words {
        [_, flag, name, ..] if flag == "-n" => Some(name),
        [_, pod, ..] => pod.split_once('/').map(|(own, _)| own),
        _ => None,
    }
}

/// Whether a command's words begin with a pod of the namespace, or with `-n` and the namespace, and name no other.
fn names_only(words: &[String], namespace: &str) -> bool {
    let rest = match words {
        [flag, name, rest @ ..] if flag == "-n" && name == namespace => rest,
        [pod, rest @ ..] => match pod.split_once('/') {
            Some((own, _)) if own == namespace => rest,
            _ => return false,
        },
        [] => return false,
    };
    let names_another = |word: &String| {
        word.contains('/') || word == "-n" || word.split('=').next() == Some("--namespace")
    };
    !rest.iter().any(names_another)
}

#[cfg(test)]
mod tests {
    use super::{Scope, check};

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
            "--help",
        ] {
            assert!(check(&words(line), &Scope::Node).is_err(), "{line}");
        }
    }

    #[test]
    fn a_reader_of_a_namespace_names_it_and_no_other() {
        let shop = Scope::Namespace("shop".to_owned());
        for line in [
            "pods -n shop -o json",
            "why shop/web",
            "connections -n shop --limit 5",
            "explain shop/web inbound --dst 10.0.0.1:80",
        ] {
            assert_eq!(check(&words(line), &shop), Ok(()), "{line}");
        }
        for line in [
            "pods",
            "pods -o json",
            "pods -n other",
            "pods -n shop -n other",
            "pods -n shop --namespace=other",
            "pods -n shop --namespace other",
            "pods -n shop other/web",
            "pods --namespace=shop",
            "why web",
            "why other/web",
            "why shopping/web",
            "why shop/web -n other",
            "why -n shop other/web",
            "status -o json",
            "cost -n shop",
        ] {
            assert!(check(&words(line), &shop).is_err(), "{line}");
        }
    }

    #[test]
    fn a_reader_is_a_service_account_of_the_name() {
        let of = |user: &str| Scope::of_user(user, "mesh");
        assert_eq!(
            of("system:serviceaccount:mesh:sidetrack-reader"),
            Some(Scope::Node)
        );
        assert_eq!(
            of("system:serviceaccount:shop:sidetrack-reader"),
            Some(Scope::Namespace("shop".to_owned()))
        );
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
