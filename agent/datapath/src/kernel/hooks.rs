//! The cgroup hooks: which program goes where. Order matters when they are attached for the first
//! time: what answers questions about redirected connections comes before what redirects.

use aya_obj::generated::bpf_attach_type::{
    self, BPF_CGROUP_GETSOCKOPT, BPF_CGROUP_INET4_CONNECT, BPF_CGROUP_INET4_GETPEERNAME,
    BPF_CGROUP_INET4_GETSOCKNAME, BPF_CGROUP_INET6_CONNECT, BPF_CGROUP_INET6_GETPEERNAME,
    BPF_CGROUP_INET6_GETSOCKNAME, BPF_CGROUP_SOCK_OPS,
};

/// One cgroup hook.
#[derive(Clone, Copy, Debug)]
pub struct Hook {
    /// Name of the hook and of its pinned link.
    pub name: &'static str,
    /// Where it attaches.
    pub attach_type: bpf_attach_type,
}

impl Hook {
    /// Function in the kernel programs, and the program's name in bpftool.
    #[must_use]
    pub fn program(&self) -> String {
        format!("st_{}", self.name)
    }
}

pub(super) const fn hook(name: &'static str, attach_type: bpf_attach_type) -> Hook {
    Hook { name, attach_type }
}

/// All cgroup hooks, in order of attachment.
pub const CGROUP_HOOKS: [Hook; 8] = [
    hook("getsockopt", BPF_CGROUP_GETSOCKOPT),
    hook("getpeername4", BPF_CGROUP_INET4_GETPEERNAME),
    hook("getpeername6", BPF_CGROUP_INET6_GETPEERNAME),
    hook("getsockname4", BPF_CGROUP_INET4_GETSOCKNAME),
    hook("getsockname6", BPF_CGROUP_INET6_GETSOCKNAME),
    hook("sockops", BPF_CGROUP_SOCK_OPS),
    hook("connect4", BPF_CGROUP_INET4_CONNECT),
    hook("connect6", BPF_CGROUP_INET6_CONNECT),
];

/// The hook of [`CGROUP_HOOKS`] that is attached to the pods' own cgroups where these are known.
pub const CALLBACKS: &str = "sockops";

/// The program that evaluates inbound connections, for all pods.
pub const INBOUND_PROGRAM: &str = "st_inbound";

/// The program each pod's network namespace gets an instance of.
pub const SK_LOOKUP_PROGRAM: &str = "st_sk_lookup";
