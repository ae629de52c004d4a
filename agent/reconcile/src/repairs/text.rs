//! Repairs as sentences, for the log and the status.

use sidetrack_common::ids::NetnsCookie;

use super::{CgroupState, LinkId, LinkLoss, Part, Repair, RepairKind};

impl Repair {
    /// What was done, and how it is counted; nothing for what was never damaged. `name` is the pod's.
    #[must_use]
    pub fn report(&self, name: &str) -> Option<(RepairKind, String)> {
        let (kind, text) = match self {
            Self::WritePolicies(policies) => {
                let rows: usize = policies.values().sum();
                let text = format!("{rows} rows of policies were missing: wrote them again");
                (RepairKind::Row, text)
            }
            Self::WriteRows(_, rows) => (
                RepairKind::Row,
                format!("{rows} rows of pod {name} were missing or different: wrote them again"),
            ),
            Self::RemoveRows(cookies) => (RepairKind::Row, unknown_pods(cookies)),
            Self::PinMap(_, path) => (RepairKind::Pin, pinned(path)),
            Self::ActivateInbound => (
                RepairKind::Row,
                "the program that decides about inbound connections was not active: activated it again"
                    .to_owned(),
            ),
            Self::FollowCgroup(state) => (RepairKind::Cgroup, followed(state)?),
            Self::RestoreLink(link, loss) => return restored(*link, loss, name),
            Self::LockDirectory(path) => (
                RepairKind::Pin,
                format!("{} was made anew: took it again", path.display()),
            ),
            Self::AttachEarlier { cookie, .. } => {
                return restored(LinkId::Inbound(*cookie), &LinkLoss::Detached, name);
            }
            Self::ForgetEarlier(_) => return None,
            Self::RemoveHandshakes(rows) => (
                RepairKind::Row,
                format!(
                    "{} handshakes remained of connections that are gone: removed them",
                    rows.len()
                ),
            ),
        };
        Some((kind, text))
    }
}

fn unknown_pods(cookies: &[NetnsCookie]) -> String {
    match cookies {
        [cookie] => format!("no agent enrolled the pod with cookie {cookie}: removed its row"),
        _ => format!(
            "no agent enrolled {} of the pods with a row: removed these rows",
            cookies.len()
        ),
    }
}

fn pinned(path: &std::path::Path) -> String {
    format!("pin {} was gone: made it again", path.display())
}

fn followed(state: &CgroupState) -> Option<String> {
    match state {
        CgroupState::Unchanged | CgroupState::Gone(_) => None,
        CgroupState::Moved { before, now } => Some(format!(
            "the pods' cgroup was at {} and is at {} now",
            before.display(),
            now.display()
        )),
        CgroupState::Recreated { before, now } if before != now && before.starts_with(now) => {
            Some(format!(
                "pods run in another cgroup than {} as well: attached all hooks to {}",
                before.display(),
                now.display()
            ))
        }
        CgroupState::Recreated { before, now } => Some(format!(
            "the pods' cgroup {} was made anew: attached all hooks to {}",
            before.display(),
            now.display()
        )),
    }
}

fn restored(link: LinkId, loss: &LinkLoss, name: &str) -> Option<(RepairKind, String)> {
    let text = match (link, loss) {
        (_, LinkLoss::Missing) => return None,
        (LinkId::Hook(_), LinkLoss::Unpinned(path)) => {
            return Some((RepairKind::Pin, pinned(path)));
        }
        (_, LinkLoss::Unpinned(path)) => {
            return Some((RepairKind::Pin, format!("pod {name}: {}", pinned(path))));
        }
        (LinkId::Hook(hook), LinkLoss::Detached) => {
            format!("hook {hook} was detached: attached it again")
        }
        (LinkId::Hook(hook), LinkLoss::Replaced(id)) => {
            format!("hook {hook} had another program, of id {id}: put ours in its place")
        }
        (LinkId::Inbound(_), _) => format!(
            "pod {name}: its sk_lookup link was detached or had another program: repaired it"
        ),
        (LinkId::Callbacks(_), _) => format!(
            "pod {name}: hook sockops of its cgroup was detached or had another program: attached it again"
        ),
        (LinkId::Dns(_), _) => format!(
            "pod {name}: a program of its DNS capture was detached or replaced: attached it again"
        ),
        (LinkId::Ingress(_, program, ifindex), LinkLoss::Detached) => format!(
            "pod {name}: the program for {} was detached from interface {ifindex}: attached it again",
            program.purpose()
        ),
        (LinkId::Ingress(_, program, ifindex), LinkLoss::Replaced(id)) => format!(
            "pod {name}: another program, of id {id}, had replaced the one for {} at interface {ifindex}: put it in its place again",
            program.purpose()
        ),
    };
    Some((RepairKind::Link, text))
}

impl Part {
    /// The problem that it cannot be repaired, and why.
    #[must_use]
    pub fn problem(self, name: &str, why: &str) -> String {
        match self {
            Self::Policies => format!("write rows of policies again: {why}"),
            Self::Rows(_) => format!("repair the rows of pod {name}: {why}"),
            Self::UnknownPods => format!("remove rows of pods that no agent enrolled: {why}"),
            Self::Map(map) => format!("pin map {map} again: {why}"),
            Self::Link(LinkId::Hook(hook)) => format!("repair hook {hook}: {why}"),
            Self::Link(LinkId::Inbound(_)) | Self::Earlier(_) => format!(
                "pod {name}: repair its sk_lookup link, without which inbound connections pass its sidecar: {why}"
            ),
            Self::Link(LinkId::Callbacks(_) | LinkId::Dns(_)) => format!("pod {name}: {why}"),
            Self::Link(LinkId::Ingress(_, program, ifindex)) => format!(
                "pod {name}: repair the program for {} at interface {ifindex}: {why}",
                program.purpose()
            ),
            Self::InboundProgram | Self::Cgroup | Self::Directory => why.to_owned(),
            Self::Handshakes => format!("remove handshakes that remain: {why}"),
        }
    }
}
