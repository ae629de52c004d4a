//! Counts the processes in network namespaces that the agent asks about, by where they are. One pass over the
//! kernel's list of tasks takes the place of reading each process's files in `/proc`: 0.1 us a task.

use core::ffi::c_void;

use sidetrack_common::task::{Pass, Place, WatchedNetns};

use crate::{
    ctx::task::{Cgroups, Process},
    maps,
};

/// A process in a cgroup that is deeper counts as one outside.
const MAX_DEPTH: usize = 32;

/// One task of the node. Returns 0: go on with the next.
#[unsafe(no_mangle)]
#[unsafe(link_section = "iter/task")]
pub fn st_tasks(ctx: *mut c_void) -> i32 {
    if let Some(process) = Process::new(ctx)
        && let Some(pass) = maps::task_pass()
    {
        let _ = try_count(&process, pass);
    }
    0
}

#[inline(always)]
fn try_count(process: &Process, pass: &mut Pass) -> Option<()> {
    let namespaces = process.namespaces()?;
    if pass.last_nsproxy != namespaces.identity() {
        pass.last_nsproxy = namespaces.identity();
        pass.last_inode = namespaces.network();
        // The place depends on the namespace's pod.
        pass.last_cgroups = 0;
    }
    let watched = maps::watched_netns(pass.last_inode)?;
    let cgroups = process.cgroups()?;
    if pass.last_cgroups != cgroups.identity() {
        pass.last_cgroups = cgroups.identity();
        pass.last_place = place(cgroups, watched.own_cgroup, pass.pods_cgroup) as u64;
    }
    add(process, watched, pass.last_place);
    if watched.lists != 0 {
        process.list();
    }
    Some(())
}

/// Where a process with these cgroups is.
#[inline(always)]
fn place(cgroups: Cgroups, own: u64, pods: u64) -> Place {
    let mut next = cgroups.unified();
    for _ in 0..MAX_DEPTH {
        let Some(cgroup) = next else { break };
        let id = cgroup.id();
        if id == own {
            return Place::Own;
        }
        if id == pods {
            return if own == 0 {
                Place::Own
            } else {
                Place::Elsewhere
            };
        }
        next = cgroup.parent();
    }
    Place::Outside
}

#[inline(always)]
fn add(process: &Process, watched: &mut WatchedNetns, place: u64) {
    let Some(group) = watched.groups.get_mut(place as usize) else {
        return;
    };
    let started = process.started();
    if group.count == 0 || started < group.started {
        group.started = started;
        group.pid = process.number();
    }
    group.count += 1;
}
