//! Asks the kernel which processes are in network namespaces, by one pass of a program over its list of tasks. It
//! takes 0.1 us a task. Reading `/proc` takes 60 us a process and look.

use std::{
    collections::BTreeMap,
    io,
    ops::ControlFlow,
    os::fd::{AsFd as _, OwnedFd},
};

use anyhow::Result;
use aya::{Btf, Ebpf};
use parking_lot::{Mutex, MutexGuard};
use sidetrack_common::{
    names,
    task::{Group, Pass, Place, WatchedNetns},
};

use super::{
    objects::{load_iterator, own_map},
    sys,
    table::Table,
};

/// The program and its maps.
#[derive(Debug)]
pub struct Tasks {
    program: OwnedFd,
    watched: Table<u64, WatchedNetns>,
    pass: Table<u32, Pass>,
    /// One pass at a time: it has the maps for itself.
    running: Mutex<()>,
}

/// The processes of a network namespace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InNetns([Group; 3]);

impl InNetns {
    /// Those that are in one place.
    #[must_use]
    pub fn at(&self, place: Place) -> Group {
        self.0[place as usize]
    }

    /// One of them, those of the pod's own cgroup first.
    #[must_use]
    pub fn any(&self) -> Option<u32> {
        // One that the agent's pid namespace does not have is 0.
        self.0
            .iter()
            .find(|group| group.pid != 0)
            .map(|group| group.pid)
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.iter().all(|group| group.count == 0)
    }
}

impl Tasks {
    /// Loads the program.
    ///
    /// # Errors
    /// If the kernel does not take it.
    pub fn load((ebpf, types): (&mut Ebpf, &Btf)) -> Result<Self> {
        Ok(Self {
            program: load_iterator((ebpf, types), "st_tasks", "task")?,
            watched: own_map(ebpf, names::WATCHED_NETNS)?,
            pass: own_map(ebpf, names::TASK_PASS)?,
            running: Mutex::default(),
        })
    }

    /// Counts the processes in network namespaces, by inode, each with the id of its pod's own cgroup if that is known.
    ///
    /// # Errors
    /// If the kernel's tasks cannot be listed.
    pub fn count(
        &self,
        own_cgroups: &BTreeMap<u64, Option<u64>>,
        pods_cgroup: u64,
    ) -> io::Result<BTreeMap<u64, InNetns>> {
        let running = self.begin(pods_cgroup)?;
        let walked = own_cgroups
            .iter()
            .try_for_each(|(inode, own)| self.watch(*inode, own.unwrap_or_default(), false))
            .and_then(|()| self.walk(None));
        let mut found = BTreeMap::new();
        for inode in own_cgroups.keys() {
            if let Some(row) = self.watched.take(inode)? {
                found.insert(*inode, InNetns(row.groups));
            }
        }
        drop(running);
        walked.map(|_| found)
    }

    /// Lists so many of the processes in a network namespace at most, the ones with low numbers first.
    ///
    /// # Errors
    /// If the kernel's tasks cannot be listed.
    pub fn list(&self, inode: u64, most: usize) -> io::Result<Vec<i32>> {
        let running = self.begin(0)?;
        let listed = self
            .watch(inode, 0, true)
            .and_then(|()| self.walk(Some(most)));
        self.watched.take(&inode)?;
        drop(running);
        listed
    }

    fn begin(&self, pods_cgroup: u64) -> io::Result<MutexGuard<'_, ()>> {
        let running = self.running.lock();
        let pass = Pass {
            pods_cgroup,
            ..Pass::default()
        };
        self.pass.insert(&0, &pass)?;
        Ok(running)
    }

    fn watch(&self, inode: u64, own_cgroup: u64, lists: bool) -> io::Result<()> {
        let row = WatchedNetns {
            own_cgroup,
            lists: lists.into(),
            ..WatchedNetns::default()
        };
        self.watched.insert(&inode, &row)
    }

    /// Runs the program over all tasks, or until it has written so many numbers.
    fn walk(&self, most: Option<usize>) -> io::Result<Vec<i32>> {
        let tasks = sys::iterate(self.program.as_fd(), None)?;
        let mut pids = Vec::new();
        sys::read_iterator(tasks, |read| take(&mut pids, read, most))?;
        Ok(pids)
    }
}

/// Takes the numbers that were read, until there are so many. Nothing is read after each million tasks.
fn take(pids: &mut Vec<i32>, read: &[u8], most: Option<usize>) -> ControlFlow<()> {
    let numbers = read.chunks_exact(size_of::<i32>());
    let numbers = numbers.map(bytemuck::pod_read_unaligned::<i32>);
    pids.extend(numbers.filter(|pid| *pid > 0));
    pids.truncate(most.unwrap_or(usize::MAX));
    match most {
        Some(most) if pids.len() >= most => ControlFlow::Break(()),
        _ => ControlFlow::Continue(()),
    }
}

#[cfg(test)]
mod tests;
