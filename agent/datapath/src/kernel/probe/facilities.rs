//! The facilities sidetrack uses, what needs each, and how to try it.

use aya_obj::generated::{
    BPF_F_NO_PREALLOC, bpf_attach_type::*, bpf_func_id::BPF_FUNC_get_netns_cookie, bpf_map_type,
};
use nix::sys::resource::{RLIM_INFINITY, Resource, setrlimit};

use super::{
    maps, node,
    programs::{self, program},
    report::Check,
};
use crate::kernel::acceleration;

const NO_OUTBOUND: &str = "outbound connections are not captured";
const NO_INBOUND: &str = "inbound connections are not captured";
const NO_ORIGINAL_DESTINATION: &str = "the sidecar cannot learn the original destination";
const NO_DNS: &str = "DNS queries over UDP are not captured";

/// Each with the object that needs it, the first kernel that has it or what it comes with, what is lost without it, and
/// how it is tried.
macro_rules! checks {
    ($($object:ident $kind:ident: $facility:literal $since:literal, $without:expr => $result:expr;)+) => {
        vec![$(Check::$kind($facility, $since, $without, $result).of(stringify!($object))),+]
    };
}

/// Tries everything that depends on the kernel alone.
pub(super) fn all() -> Vec<Check> {
    // Linux before 5.11 counts maps against this limit. Without it a map that cannot be created is one
    // the kernel does not have.
    let _ = setrlimit(Resource::RLIMIT_MEMLOCK, RLIM_INFINITY, RLIM_INFINITY);
    checks! {
        core required: "sock_diag for TCP" "3.3, CONFIG_INET_DIAG",
            "pods that already run cannot be enrolled" => node::sock_diag();
        core required: "cgroup/connect4" "4.17", NO_OUTBOUND => program(BPF_CGROUP_INET4_CONNECT, None);
        core required: "cgroup/connect6" "4.17", NO_OUTBOUND => program(BPF_CGROUP_INET6_CONNECT, None);
        core required: "bpf_get_netns_cookie in connect" "5.7", NO_OUTBOUND
            => program(BPF_CGROUP_INET4_CONNECT, Some(BPF_FUNC_get_netns_cookie));
        core required: "bpf_skc_to_tcp_sock and typed loads in connect" "5.11, CAP_PERFMON",
            "it is unknown who created a socket" => programs::typed_loads();
        core optional: "bpf_set_retval in connect" "5.18",
            "a refused connect always fails with EPERM" => programs::set_retval();
        core optional: "bpf_skc_to_mptcp_sock in connect" "5.19, CONFIG_MPTCP",
            "applications with MPTCP sockets see the sidecar as their peer" => programs::mptcp_parent();
        core required: "cgroup/getpeername4 and 6" "5.8",
            "applications see the sidecar as their peer" => program(BPF_CGROUP_INET4_GETPEERNAME, None);
        core required: "cgroup/getsockname4 and 6" "5.8",
            "applications see a loopback address as their own" => program(BPF_CGROUP_INET4_GETSOCKNAME, None);
        core required: "cgroup/sock_release" "5.9",
            "the memory that the sockets of a pod take has no limit" => program(BPF_CGROUP_INET_SOCK_RELEASE, None);
        core required: "sockops" "4.13", NO_ORIGINAL_DESTINATION => program(BPF_CGROUP_SOCK_OPS, None);
        core required: "bpf_get_netns_cookie in sockops" "5.15", NO_ORIGINAL_DESTINATION
            => program(BPF_CGROUP_SOCK_OPS, Some(BPF_FUNC_get_netns_cookie));
        core required: "cgroup/getsockopt" "5.3", NO_ORIGINAL_DESTINATION => program(BPF_CGROUP_GETSOCKOPT, None);
        core required: "cgroup/setsockopt" "5.3",
            "an application leads its redirected connections past the sidecar with a socket option"
            => program(BPF_CGROUP_SETSOCKOPT, None);
        core optional: "bpf_probe_read_kernel in cgroup/getsockopt" "5.8, CAP_PERFMON",
            "each connection of a proxy to the outside takes memory, and sidecars that hang are seen once their queues are full"
            => programs::read_kernel();
        core required: "sk_lookup" "5.9", NO_INBOUND => program(BPF_SK_LOOKUP, None);
        core optional: "ingress interface in sk_lookup" "5.17",
            "pods whose policy names interfaces, and pods in mode TPROXY, are not enrolled" => programs::ingress_ifindex();
        forward optional: "programs on interfaces (tcx; before 6.6 tc filters)" "4.5",
            "connections that only pass through a pod are not captured, and pods that name virtual interfaces are not enrolled"
            => programs::ingress_programs();
        core required: "socket storage map" "5.2", "no connection can be remembered" => maps::storage_map();
        core required: "sockhash map with lookup" "4.18", NO_INBOUND
            => maps::map(bpf_map_type::BPF_MAP_TYPE_SOCKHASH, 8, 0);
        core required: "longest-prefix trie map" "4.11", "no routes, no CIDR lists"
            => maps::map(bpf_map_type::BPF_MAP_TYPE_LPM_TRIE, 8, BPF_F_NO_PREALLOC);
        core required: "ring buffer map" "5.8", "the kernel programs cannot log" => maps::ring_buffer();
        core required: "network namespace cookie" "5.14", "pods cannot be distinguished" => node::netns_cookie();
        core required: "BPF iterator over open files" "5.8",
            "running sidecars need a restart" => node::iterator("bpf_iter_task_file");
        core required: "BPF iterator over tasks" "5.8",
            "processes outside the pods' cgroup are not noticed" => node::iterator("bpf_iter_task");
        accelerate optional: "accounting of what is queued past TCP" "6.14",
            "no pod is accelerated" => acceleration::is_possible().is_ok();
        dns optional: "cgroup/recvmsg4 and 6" "5.2", NO_DNS => program(BPF_CGROUP_UDP6_RECVMSG, None).is_ok();
        dns optional: "bpf_probe_read_kernel in cgroup/sendmsg4 and 6" "5.8, CAP_PERFMON",
            NO_DNS => programs::reads_of_kernel_memory().is_ok();
    }
}
