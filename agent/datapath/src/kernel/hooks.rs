//! The cgroup hooks: which program goes where. Order matters when they are attached for the first
//! time: what sees sockets close comes before what counts them, and what answers questions about redirected connections
//! before what redirects.

use aya_obj::generated::bpf_attach_type::{
    self, BPF_CGROUP_GETSOCKOPT, BPF_CGROUP_INET_SOCK_RELEASE, BPF_CGROUP_INET4_CONNECT,
    BPF_CGROUP_INET4_GETPEERNAME, BPF_CGROUP_INET4_GETSOCKNAME, BPF_CGROUP_INET6_CONNECT,
    BPF_CGROUP_INET6_GETPEERNAME, BPF_CGROUP_INET6_GETSOCKNAME, BPF_CGROUP_SETSOCKOPT,
    BPF_CGROUP_SOCK_OPS, BPF_CGROUP_UDP4_RECVMSG, BPF_CGROUP_UDP4_SENDMSG, BPF_CGROUP_UDP6_RECVMSG,
    BPF_CGROUP_UDP6_SENDMSG,
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

    /// Whether it sends connections or queries elsewhere. All others report the original addresses of redirected
    /// sockets.
    fn redirects(&self) -> bool {
        [
            BPF_CGROUP_INET4_CONNECT,
            BPF_CGROUP_INET6_CONNECT,
            BPF_CGROUP_UDP4_SENDMSG,
            BPF_CGROUP_UDP6_SENDMSG,
        ]
        .contains(&self.attach_type)
    }
}

const fn hook(name: &'static str, attach_type: bpf_attach_type) -> Hook {
    Hook { name, attach_type }
}

/// The cgroup hooks of the core, in order of attachment.
pub const CGROUP_HOOKS: [Hook; 10] = [
    hook("sock_release", BPF_CGROUP_INET_SOCK_RELEASE),
    hook("getsockopt", BPF_CGROUP_GETSOCKOPT),
    hook("setsockopt", BPF_CGROUP_SETSOCKOPT),
    hook("getpeername4", BPF_CGROUP_INET4_GETPEERNAME),
    hook("getpeername6", BPF_CGROUP_INET6_GETPEERNAME),
    hook("getsockname4", BPF_CGROUP_INET4_GETSOCKNAME),
    hook("getsockname6", BPF_CGROUP_INET6_GETSOCKNAME),
    hook("sockops", BPF_CGROUP_SOCK_OPS),
    hook("connect4", BPF_CGROUP_INET4_CONNECT),
    hook("connect6", BPF_CGROUP_INET6_CONNECT),
];

/// The hooks for DNS, in order of attachment: what answers come through before what redirects queries.
pub(super) const DNS_HOOKS: [Hook; 6] = [
    hook("dns_recvmsg4", BPF_CGROUP_UDP4_RECVMSG),
    hook("dns_recvmsg6", BPF_CGROUP_UDP6_RECVMSG),
    hook("dns_sendmsg4", BPF_CGROUP_UDP4_SENDMSG),
    hook("dns_sendmsg6", BPF_CGROUP_UDP6_SENDMSG),
    hook("dns_connect4", BPF_CGROUP_INET4_CONNECT),
    hook("dns_connect6", BPF_CGROUP_INET6_CONNECT),
];

/// Names of all hooks that redirect, in order of attachment.
pub(super) fn redirecting() -> impl DoubleEndedIterator<Item = &'static str> {
    let all = CGROUP_HOOKS.iter().chain(&DNS_HOOKS);
    all.filter(|hook| hook.redirects()).map(|hook| hook.name)
}

/// The hook of [`CGROUP_HOOKS`] that is attached to the pods' own cgroups where these are known.
pub const CALLBACKS: &str = "sockops";

/// The program that evaluates inbound connections, for all pods.
pub const INBOUND_PROGRAM: &str = "st_inbound";

/// The program each pod's network namespace gets an instance of.
pub const SK_LOOKUP_PROGRAM: &str = "st_sk_lookup";
