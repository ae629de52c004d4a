//! The cgroup hooks: which program goes where. Order matters when they are attached for the first
//! time: what answers questions about redirected connections comes before what redirects.

use aya_obj::generated::bpf_attach_type;

/// One cgroup hook.
#[derive(Clone, Copy, Debug)]
pub struct Hook {
    /// Name of the hook and of its pinned link.
    pub name: &'static str,
    /// Function in the kernel programs, and the program's name in bpftool.
    pub program: &'static str,
    /// Where it attaches.
    pub attach_type: bpf_attach_type,
}

pub(super) const fn hook(
    name: &'static str,
    program: &'static str,
    attach_type: bpf_attach_type,
) -> Hook {
    Hook {
        name,
        program,
        attach_type,
    }
}

/// All cgroup hooks, in order of attachment.
pub const CGROUP_HOOKS: [Hook; 8] = [
    hook(
        "getsockopt",
        "st_getsockopt",
        bpf_attach_type::BPF_CGROUP_GETSOCKOPT,
    ),
    hook(
        "getpeername4",
        "st_getpeername4",
        bpf_attach_type::BPF_CGROUP_INET4_GETPEERNAME,
    ),
    hook(
        "getpeername6",
        "st_getpeername6",
        bpf_attach_type::BPF_CGROUP_INET6_GETPEERNAME,
    ),
    hook(
        "getsockname4",
        "st_getsockname4",
        bpf_attach_type::BPF_CGROUP_INET4_GETSOCKNAME,
    ),
    hook(
        "getsockname6",
        "st_getsockname6",
        bpf_attach_type::BPF_CGROUP_INET6_GETSOCKNAME,
    ),
    hook(
        "sockops",
        "st_sockops",
        bpf_attach_type::BPF_CGROUP_SOCK_OPS,
    ),
    hook(
        "connect4",
        "st_connect4",
        bpf_attach_type::BPF_CGROUP_INET4_CONNECT,
    ),
    hook(
        "connect6",
        "st_connect6",
        bpf_attach_type::BPF_CGROUP_INET6_CONNECT,
    ),
];

/// The hook of [`CGROUP_HOOKS`] that is attached to the pods' own cgroups where these are known.
pub const CALLBACKS: &str = "sockops";

/// The program that evaluates inbound connections, for all pods.
pub const INBOUND_PROGRAM: &str = "st_inbound";

/// The program each pod's network namespace gets an instance of.
pub const SK_LOOKUP_PROGRAM: &str = "st_sk_lookup";
