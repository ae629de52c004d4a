//! The hooks of the pinned links.

use std::{io, os::fd::AsFd as _};

use anyhow::{Context as _, Result};
use serde::Serialize;
use sidetrack_datapath::kernel::{
    hooks::{CALLBACKS, CGROUP_HOOKS},
    pins::Pins,
    sys,
};

use super::super::{Places, output};

/// The name of [`SK_LOOKUP_PROGRAM`](sidetrack_datapath::kernel::hooks::SK_LOOKUP_PROGRAM)'s hook.
const INBOUND_HOOK: &str = "sk_lookup";

#[derive(Debug, Serialize)]
pub(super) struct HookStatus {
    pub(super) hook: &'static str,
    pub(super) attached: bool,
    /// Of the connection callbacks, while they are on the pods' own cgroups only, and of the program for inbound
    /// connections: on how many pods.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) pods: Option<usize>,
    /// Of how many.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) of_pods: Option<usize>,
    pub(super) program_id: Option<u32>,
    pub(super) link_id: Option<u32>,
    pub(super) cgroup_id: Option<u64>,
}

impl HookStatus {
    /// What it means that it is not attached.
    pub(super) fn problem(&self) -> String {
        let hook = self.hook;
        match (self.pods, self.of_pods) {
            (Some(pods), Some(of)) if hook == INBOUND_HOOK => format!(
                "hook {hook} is attached to {pods} of {of} pods: inbound connections of the others pass their sidecars until the agent has repaired it, or they have ended"
            ),
            (Some(pods), Some(of)) => format!(
                "hook {hook} is attached to {pods} of {of} pods: the agent attaches it to the others within 2 s, or they have ended"
            ),
            _ => format!("hook {hook} is not attached: the agent attaches it again within 2 s"),
        }
    }
}

/// All hooks, whether they are attached or not.
pub(super) fn hooks(places: &Places) -> Result<Vec<HookStatus>> {
    let pins = Pins::new(&places.bpffs)?;
    let hooks = CGROUP_HOOKS.iter().map(|hook| {
        let path = pins.link(hook.name);
        let link = match sys::open_pin(&path) {
            Ok(link) => Some(link),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => {
                return Err(error).with_context(|| format!("open {}", path.display()));
            }
        };
        let info = link
            .as_ref()
            .and_then(|link| sys::link_info(link.as_fd()).ok());
        let cgroup = link
            .as_ref()
            .and_then(|link| sys::link_cgroup(link.as_fd()).ok());
        let is_on_all = cgroup.is_some_and(|id| id != 0);
        let on_pods = hook.name == CALLBACKS && !is_on_all;
        let pods = on_pods.then(|| OnPods::with_callbacks(&pins)).transpose()?;
        Ok(HookStatus {
            hook: hook.name,
            attached: is_on_all || pods.as_ref().is_some_and(OnPods::is_all),
            pods: pods.as_ref().map(|pods| pods.with),
            of_pods: pods.map(|pods| pods.of),
            program_id: info.map(|info| info.prog_id),
            link_id: info.map(|info| info.id),
            cgroup_id: cgroup,
        })
    });
    hooks.chain([inbound(&pins)]).collect()
}

/// The program for inbound connections, of which each pod's network namespace has an instance.
fn inbound(pins: &Pins) -> Result<HookStatus> {
    let pods = OnPods::count(pins, |pod| {
        let link = sys::open_pin(&pins.pod_link(pod))?;
        sys::link_netns(link.as_fd())
    })?;
    Ok(HookStatus {
        hook: INBOUND_HOOK,
        attached: pods.is_all(),
        pods: Some(pods.with),
        of_pods: Some(pods.of),
        program_id: None,
        link_id: None,
        cgroup_id: None,
    })
}

/// On how many pods a hook is.
struct OnPods {
    with: usize,
    of: usize,
}

impl OnPods {
    /// `place` is where a pod's link is attached, 0 if nowhere.
    fn count(pins: &Pins, place: impl Fn(u64) -> io::Result<u64>) -> Result<Self> {
        let pods = pins.pinned_pods()?;
        let is_attached = |pod: &&u64| place(**pod).is_ok_and(|place| place != 0);
        Ok(Self {
            with: pods.iter().filter(is_attached).count(),
            of: pods.len(),
        })
    }

    /// By the connection callbacks on the pods' own cgroups.
    fn with_callbacks(pins: &Pins) -> Result<Self> {
        Self::count(pins, |pod| {
            let link = sys::open_pin(&pins.pod_callbacks(pod))?;
            sys::link_cgroup(link.as_fd())
        })
    }

    const fn is_all(&self) -> bool {
        self.with == self.of
    }
}

pub(super) fn print_hooks(hooks: &[HookStatus], wide: bool) -> Result<()> {
    let cgroup: &[&str] = if wide { &["CGROUP"] } else { &[] };
    let header = [&["HOOK", "ATTACHED", "PROGRAM", "LINK"], cgroup].concat();
    let mut table = output::table(header);
    for hook in hooks {
        let attached = match (hook.attached, hook.pods) {
            (false, Some(pods)) => {
                format!("to {pods} of {} pods", hook.of_pods.unwrap_or_default())
            }
            (true, Some(1)) => "to 1 pod".to_owned(),
            (true, Some(pods)) => format!("to {pods} pods"),
            (true, None) => "yes".to_owned(),
            (false, _) => "no".to_owned(),
        };
        let mut row = vec![
            hook.hook.to_owned(),
            attached,
            output::or_dash(hook.program_id),
            output::or_dash(hook.link_id),
        ];
        if wide {
            row.push(output::or_dash(hook.cgroup_id));
        }
        table.add_row(row);
    }
    output::print_table(&table)
}
