//! The environment variables a runtime sets.

use std::{env, path::PathBuf};

use sidetrack_policy::PodRef;

use super::answer::Error;

/// The raw variables.
#[derive(Clone, Debug, Default)]
pub struct Variables {
    /// `CNI_COMMAND`
    pub command: Option<String>,
    /// `CNI_CONTAINERID`
    pub container: Option<String>,
    /// `CNI_NETNS`
    pub netns: Option<String>,
    /// `CNI_IFNAME`
    pub interface: Option<String>,
    /// `CNI_ARGS`
    pub arguments: Option<String>,
}

impl Variables {
    /// Those of this process.
    pub fn of_process() -> Self {
        let get = |name| {
            let value = env::var_os(name)?.to_string_lossy().into_owned();
            Some(value).filter(|value: &String| !value.is_empty())
        };
        Self {
            command: get("CNI_COMMAND"),
            container: get("CNI_CONTAINERID"),
            netns: get("CNI_NETNS"),
            interface: get("CNI_IFNAME"),
            arguments: get("CNI_ARGS"),
        }
    }

    /// The command.
    pub fn command(&self) -> Result<Command, Error> {
        match self.command.as_deref() {
            Some("ADD") => Ok(Command::Add),
            Some("CHECK") => Ok(Command::Check),
            Some("DEL") => Ok(Command::Delete),
            Some("GC") => Ok(Command::Collect),
            Some("STATUS") => Ok(Command::Status),
            Some("VERSION") => Ok(Command::Version),
            Some(other) => Err(Error::variable(
                "CNI_COMMAND",
                &format!("is {other:?}; it must be ADD, CHECK, DEL, GC, STATUS or VERSION"),
            )),
            None => Err(Error::variable(
                "CNI_COMMAND",
                "is missing; this is a CNI plugin, which a container runtime starts",
            )),
        }
    }

    /// The container's id, for all commands that need one.
    pub fn container(&self) -> Result<&str, Error> {
        let id = required("CNI_CONTAINERID", self.container.as_deref())?;
        let alphanumeric = |c: char| c.is_ascii_alphanumeric();
        let allowed = |c: char| alphanumeric(c) || matches!(c, '_' | '.' | '-');
        if id.starts_with(alphanumeric) && id.chars().all(allowed) {
            Ok(id)
        } else {
            let problem = format!("is {id:?}, which is not a container id");
            Err(Error::variable("CNI_CONTAINERID", &problem))
        }
    }

    /// The network namespace's path, for ADD and CHECK.
    pub fn netns(&self) -> Result<PathBuf, Error> {
        let path = required("CNI_NETNS", self.netns.as_deref())?;
        Ok(PathBuf::from(path))
    }

    /// The interface's name, which the specification requires of every plugin.
    pub fn interface(&self) -> Result<&str, Error> {
        required("CNI_IFNAME", self.interface.as_deref())
    }

    /// The pod; `None` for containers that Kubernetes did not start.
    pub fn pod(&self) -> Result<Option<Pod>, Error> {
        let mut name = None;
        let mut namespace = None;
        let mut uid = None;
        let text = self.arguments.as_deref().unwrap_or_default();
        for pair in text.split(';').filter(|pair| !pair.is_empty()) {
            let Some((key, value)) = pair.split_once('=') else {
                let problem = format!("has {pair:?}, which is not KEY=VALUE");
                return Err(Error::variable("CNI_ARGS", &problem));
            };
            let field = match key {
                "K8S_POD_NAME" => &mut name,
                "K8S_POD_NAMESPACE" => &mut namespace,
                "K8S_POD_UID" => &mut uid,
                _ => continue,
            };
            *field = Some(value.to_owned()).filter(|value| !value.is_empty());
        }
        let (name, namespace) = match (name, namespace) {
            (Some(name), Some(namespace)) => (name, namespace),
            (None, None) => return Ok(None),
            _ => {
                let problem = "has one of K8S_POD_NAME and K8S_POD_NAMESPACE; it must have both";
                return Err(Error::variable("CNI_ARGS", problem));
            }
        };
        Ok(Some(Pod {
            name: PodRef { namespace, name },
            uid,
        }))
    }
}

fn required<'a>(name: &str, value: Option<&'a str>) -> Result<&'a str, Error> {
    value.ok_or_else(|| Error::variable(name, "is missing"))
}

/// `CNI_COMMAND`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    /// `ADD`
    Add,
    /// `CHECK`
    Check,
    /// `DEL`
    Delete,
    /// `GC`
    Collect,
    /// `STATUS`
    Status,
    /// `VERSION`
    Version,
}

/// The pod of a container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pod {
    /// Namespace and name.
    pub name: PodRef,
    /// UID, from runtimes that set it (containerd 1.6, CRI-O 1.21).
    pub uid: Option<String>,
}

#[cfg(test)]
mod tests;
