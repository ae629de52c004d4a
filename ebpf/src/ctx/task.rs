//! `struct bpf_iter__task`: one task of the node, and the kernel structs behind it.
//!
//! Each pointer is checked before it is followed: of kernels whose BTF marks pointers that RCU protects, the verifier
//! requires that.

use core::{ffi::c_void, ptr};

use aya_ebpf::helpers::generated::bpf_get_current_task_btf;

use super::{
    number, offsets,
    sock_map::Meta,
    typed::{Typed, follow, load},
};

offsets! {
    OFFSET_TASK_PID,
    OFFSET_TASK_TGID,
    OFFSET_TASK_LEADER,
    OFFSET_TASK_START,
    OFFSET_TASK_THREAD_PID,
    OFFSET_TASK_NSPROXY,
    OFFSET_TASK_CGROUPS,
    OFFSET_PID_LEVEL,
    OFFSET_PID_NUMBERS,
    OFFSET_NSPROXY_NET,
    OFFSET_NET_NS,
    OFFSET_NS_INUM,
    OFFSET_CSS_SET_CGROUP,
    OFFSET_CGROUP_SELF,
    OFFSET_CGROUP_KN,
    OFFSET_CSS_PARENT,
    OFFSET_CSS_CGROUP,
    OFFSET_KERNFS_ID,
}

/// `struct bpf_iter__task` of kernel/bpf/task_iter.c.
#[repr(C)]
struct Context {
    meta: *mut Meta,
    task: *mut c_void,
}

/// A thread.
#[derive(Clone, Copy)]
pub struct Task {
    ctx: *mut Context,
    task: Typed,
}

/// Namespaces of a task. Tasks with the same have the same.
#[derive(Clone, Copy)]
pub struct Namespaces(Typed);

/// Cgroups of a task. Tasks with the same have the same.
#[derive(Clone, Copy)]
pub struct Cgroups(Typed);

/// A cgroup of version 2.
#[derive(Clone, Copy)]
pub struct Cgroup(Typed);

impl Task {
    /// Of the program's context; `None` at the end.
    #[inline(always)]
    pub fn new(ctx: *mut c_void) -> Option<Self> {
        let ctx: *mut Context = ctx.cast();
        // SAFETY: the program's own context; the verifier checks every access.
        let task: Typed = unsafe { ptr::read_volatile(&raw const (*ctx).task) }.cast();
        if task.is_null() {
            return None;
        }
        Some(Self { ctx, task })
    }

    /// Whether it stands for its process: the first thread, or any once that has ended before the others.
    #[inline(always)]
    pub fn is_process(&self) -> bool {
        let pid: u32 = load(self.task, &OFFSET_TASK_PID);
        let tgid: u32 = load(self.task, &OFFSET_TASK_TGID);
        if pid == tgid {
            return true;
        }
        let leader = follow(self.task, &OFFSET_TASK_LEADER);
        !leader.is_null() && follow(leader, &OFFSET_TASK_NSPROXY).is_null()
    }

    /// Its namespaces; `None` once it has ended.
    #[inline(always)]
    pub fn namespaces(&self) -> Option<Namespaces> {
        let nsproxy = follow(self.task, &OFFSET_TASK_NSPROXY);
        (!nsproxy.is_null()).then_some(Namespaces(nsproxy))
    }

    /// Its cgroups.
    #[inline(always)]
    pub fn cgroups(&self) -> Option<Cgroups> {
        let cgroups = follow(self.task, &OFFSET_TASK_CGROUPS);
        (!cgroups.is_null()).then_some(Cgroups(cgroups))
    }

    /// When it started, in nanoseconds since boot.
    #[inline(always)]
    pub fn started(&self) -> u64 {
        load(self.task, &OFFSET_TASK_START)
    }

    /// Its number in the pid namespace of the reader; 0 if it has none there, or if that cannot be read: in
    /// `lockdown=confidentiality`, in any but the node's first.
    #[inline(always)]
    pub fn number(&self) -> u32 {
        /// Of `struct upid`, whose first member is the number.
        const UPID_SIZE: usize = 16;
        // SAFETY: takes nothing; the task that reads.
        let reader: Typed = unsafe { bpf_get_current_task_btf() }.cast();
        let (own, pid) = (
            follow(reader, &OFFSET_TASK_THREAD_PID),
            follow(self.task, &OFFSET_TASK_THREAD_PID),
        );
        if own.is_null() || pid.is_null() {
            return 0;
        }
        let level: u32 = load(own, &OFFSET_PID_LEVEL);
        let depth: u32 = load(pid, &OFFSET_PID_LEVEL);
        if level == 0 {
            return load(self.task, &OFFSET_TASK_PID);
        }
        if level > depth {
            return 0;
        }
        let at = pid as usize + OFFSET_PID_NUMBERS.load() as usize + level as usize * UPID_SIZE;
        number::load(at).unwrap_or(0)
    }

    /// Writes its number to the reader.
    #[inline(always)]
    pub fn list(&self) {
        let number = self.number();
        // SAFETY: the program's own context.
        unsafe {
            let meta = ptr::read_volatile(&raw const (*self.ctx).meta);
            Meta::write(meta, &number);
        }
    }
}

impl Namespaces {
    /// Distinguishes them from others during one pass.
    #[inline(always)]
    pub fn identity(self) -> u64 {
        self.0 as u64
    }

    /// Inode of the network namespace.
    #[inline(always)]
    pub fn network(self) -> u64 {
        let net = follow(self.0, &OFFSET_NSPROXY_NET);
        if net.is_null() {
            return 0;
        }
        let inode: u32 = load(
            net.wrapping_add(OFFSET_NET_NS.load() as usize),
            &OFFSET_NS_INUM,
        );
        inode.into()
    }
}

impl Cgroups {
    /// Distinguishes them from others during one pass.
    #[inline(always)]
    pub fn identity(self) -> u64 {
        self.0 as u64
    }

    /// The cgroup of version 2.
    #[inline(always)]
    pub fn unified(self) -> Option<Cgroup> {
        let cgroup = follow(self.0, &OFFSET_CSS_SET_CGROUP);
        (!cgroup.is_null()).then_some(Cgroup(cgroup))
    }
}

impl Cgroup {
    /// Its id, the inode of its directory.
    #[inline(always)]
    pub fn id(self) -> u64 {
        let kn = follow(self.0, &OFFSET_CGROUP_KN);
        if kn.is_null() {
            return 0;
        }
        load(kn, &OFFSET_KERNFS_ID)
    }

    /// The one above it.
    #[inline(always)]
    pub fn parent(self) -> Option<Self> {
        let own = self.0.wrapping_add(OFFSET_CGROUP_SELF.load() as usize);
        let parent = follow(own, &OFFSET_CSS_PARENT);
        if parent.is_null() {
            return None;
        }
        let cgroup = follow(parent, &OFFSET_CSS_CGROUP);
        (!cgroup.is_null()).then_some(Self(cgroup))
    }
}
