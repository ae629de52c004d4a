//! What one pass over the kernel's list of tasks finds, shared by the program and the agent.

/// Where a process of a watched network namespace is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Place {
    /// In the pod's own cgroup, or below that of all pods if the own one is not known.
    Own = 0,
    /// Below the cgroup of all pods, and not in the pod's own.
    Elsewhere = 1,
    /// Not below the cgroup of all pods.
    Outside = 2,
}

/// The processes of one namespace in one place.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "bytemuck", derive(bytemuck::Pod, bytemuck::Zeroable))]
#[repr(C)]
pub struct Group {
    /// When the oldest of them started, in nanoseconds since boot.
    pub started: u64,
    /// The oldest of them, as the agent's pid namespace numbers it.
    pub pid: u32,
    /// How many there are. In the pod's own cgroup they are not all counted.
    pub count: u32,
}

/// A network namespace that the agent asks about. The agent writes the row before a pass and takes it after.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "bytemuck", derive(bytemuck::Pod, bytemuck::Zeroable))]
#[repr(C)]
pub struct WatchedNetns {
    /// Id of the pod's own cgroup; 0 if it is not known.
    pub own_cgroup: u64,
    /// 1 if the process ids are to be written to the reader.
    pub lists: u32,
    /// Padding, zero.
    pub pad: u32,
    /// The processes, by [`Place`].
    pub groups: [Group; 3],
}

/// The state of a pass.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "bytemuck", derive(bytemuck::Pod, bytemuck::Zeroable))]
#[repr(C)]
pub struct Pass {
    /// Id of the cgroup of all pods.
    pub pods_cgroup: u64,
    /// The namespaces of the task before this one: tasks in the same ones are alike.
    pub last_nsproxy: u64,
    /// Its cgroups.
    pub last_cgroups: u64,
    /// The inode of its network namespace.
    pub last_inode: u64,
    /// Its [`Place`].
    pub last_place: u64,
    /// 1 if the agent does not ask about its network namespace.
    pub skips_namespaces: u64,
    /// 1 if no more needs to be known of processes with its namespaces and cgroups.
    pub skips_cgroups: u64,
}

const _: () = assert!(size_of::<Group>() == 16);
const _: () = assert!(size_of::<WatchedNetns>() == 64);
const _: () = assert!(size_of::<Pass>() == 56);
