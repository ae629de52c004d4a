//! Which facilities the node offers. Each is tried, because distributions backport features and version
//! numbers mislead.

mod capabilities;
mod facilities;
mod maps;
mod node;
mod programs;
mod report;

use std::path::Path;

use self::report::Problem;
use super::{kernel_layout, release};

pub use self::{
    capabilities::capabilities,
    programs::{
        ingress_ifindex, ingress_links, ingress_programs, mptcp_parent, read_kernel, set_retval,
        shared_listeners,
    },
    report::{Check, DoctorReport},
};

const CAPABILITIES: &str = "capabilities of root";

/// Tries everything. `socket` is whether an agent could bind its socket, or why not.
#[must_use]
pub fn node(bpffs: &Path, pods_cgroup: Option<&Path>, socket: Result<(), String>) -> DoctorReport {
    let capabilities = capabilities();
    let has_capabilities = capabilities.is_ok();
    let mut checks = vec![
        Check::required(CAPABILITIES, "5.8", "nothing can be loaded", capabilities),
        Check::required(
            "BTF of the kernel",
            "5.4, CONFIG_DEBUG_INFO_BTF",
            "socket owners are unknown",
            kernel_layout::offsets(),
        ),
        Check::required(
            "bpf filesystem",
            "4.4",
            "hooks would not outlive the agent",
            node::bpffs(bpffs),
        ),
        Check::required(
            "cgroup2",
            "4.5",
            "there is nothing to attach to",
            node::cgroup2(pods_cgroup),
        ),
        Check::required(
            "control socket",
            "any",
            "the agent does not start",
            socket.map_err(Problem::Unprepared),
        ),
    ];
    checks.extend(facilities::all());
    let can_try = checks.iter().all(Check::is_ready);
    let mut able = checks
        .iter()
        .all(|check| check.optional || check.ok == Some(true));
    let mut own = Check::required(
        "sidetrack's own programs",
        "all of the above",
        "the agent does not start",
        if can_try {
            node::own_programs(bpffs)
        } else {
            Ok(())
        },
    );
    able &= own.ok == Some(true);
    if !can_try {
        own.forget();
    }
    checks.push(own);
    if !has_capabilities {
        // A failure may come from the missing capabilities alone.
        let failed = |check: &&mut Check| check.ok == Some(false) || check.problem.is_some();
        let others = |check: &&mut Check| check.facility != CAPABILITIES;
        let unknown = checks.iter_mut().filter(failed).filter(others);
        unknown.for_each(Check::forget);
    }
    DoctorReport {
        kernel: release::text_or_unknown(),
        ok: checks.iter().all(Check::is_ready),
        able,
        checks,
    }
}

/// Checks that the kernel has everything the kernel programs need. Mounts are not part of it: the error
/// names only what no preparation of the node can add.
///
/// # Errors
/// If a facility is missing.
pub fn kernel() -> Result<(), String> {
    let missing: Vec<String> = facilities::all()
        .iter()
        .filter(|check| check.is_missing())
        .map(|check| {
            format!(
                "\n  {} (Linux {}): without it {}",
                check.facility, check.since, check.without
            )
        })
        .collect();
    if missing.is_empty() {
        return Ok(());
    }
    Err(format!(
        "the kernel, {}, cannot run sidetrack; it lacks{}",
        release::text_or_unknown(),
        missing.concat()
    ))
}
