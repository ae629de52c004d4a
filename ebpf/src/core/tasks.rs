//! Counts the processes in network namespaces that the agent asks about, by where they are. One pass over the
//! kernel's list of tasks takes the place of reading each process's files in `/proc`.

use core::ffi::c_void;

use sidetrack_common::task::{Pass, Place, WatchedNetns};

use crate::maps;
use sidetrack_ebpf::ctx::task::{Cgroups, Task};

/// A process in a cgroup that is deeper counts as one outside.
const MAX_DEPTH: usize = 32;

/// One task of the node. Returns 0: continue with the next.
///
/// Most are alike: nothing of them is read but which namespaces and cgroups they have, because each further field is
/// in memory that no cache holds.
#[unsafe(no_mangle)]
#[unsafe(link_section = "iter/task")]
pub fn st_tasks(ctx: *mut c_void) -> i32 {
    if let Some(task) = Task::new(ctx)
        && let Some(pass) = maps::task_pass()
    {
        let _ = try_count(&task, pass);
    }
    0
}

#[inline(always)]
fn try_count(task: &Task, pass: &mut Pass) -> Option<()> {
    let namespaces = task.namespaces()?;
    if pass.last_nsproxy != namespaces.identity() {
        pass.last_nsproxy = namespaces.identity();
        pass.last_inode = namespaces.network();
        // What is known of the cgroups depends on the namespace's pod.
        pass.last_cgroups = 0;
        pass.skips_namespaces = u64::from(maps::watched_netns(pass.last_inode).is_none());
    }
    if pass.skips_namespaces != 0 {
        return None;
    }
    let cgroups = task.cgroups()?;
    if pass.last_cgroups == cgroups.identity() {
        if pass.skips_cgroups != 0 {
            return None;
        }
    } else {
        pass.last_cgroups = cgroups.identity();
        pass.skips_cgroups = 0;
        pass.last_place = u64::MAX;
    }
    if !task.is_process() {
        return None;
    }
    let watched = maps::watched_netns(pass.last_inode)?;
    if pass.last_place == u64::MAX {
        pass.last_place = place(cgroups, watched.own_cgroup, pass.pods_cgroup) as u64;
    }
    add(task, watched, pass.last_place);
    if watched.lists != 0 {
        task.list();
    } else if pass.last_place == Place::Own as u64 {
        // That there is one is enough.
        pass.skips_cgroups = 1;
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
fn add(task: &Task, watched: &mut WatchedNetns, place: u64) {
    let Some(group) = watched.groups.get_mut(place as usize) else {
        return;
    };
    let started = task.started();
    if group.count == 0 || started < group.started {
        group.started = started;
        group.pid = task.number();
    }
    group.count += 1;
}
