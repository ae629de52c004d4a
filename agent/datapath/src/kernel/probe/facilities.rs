//! The facilities sidetrack uses, what needs each, and how to try it.

use aya_obj::generated::{
    BPF_F_NO_PREALLOC, bpf_attach_type, bpf_func_id, bpf_map_type, bpf_prog_type,
};
use nix::sys::resource::{RLIM_INFINITY, Resource, setrlimit};

use super::{maps, node, programs, report::Check};
use crate::kernel::acceleration;

const NO_OUTBOUND: &str = "outbound connections are not captured";
const NO_INBOUND: &str = "inbound connections are not captured";
const NO_ORIGINAL_DESTINATION: &str = "the sidecar cannot learn the original destination";

/// Tries everything that depends on the kernel alone.
pub(super) fn all() -> Vec<Check> {
    // Linux before 5.11 counts maps against this limit. Without it a map that cannot be created is one
    // the kernel does not have.
    let _ = setrlimit(Resource::RLIMIT_MEMLOCK, RLIM_INFINITY, RLIM_INFINITY);
    let mut checks = vec![Check::required(
        "sock_diag for TCP",
        "3.3, CONFIG_INET_DIAG",
        "pods that already run cannot be enrolled",
        node::sock_diag(),
    )];
    checks.extend(outbound());
    checks.extend(original_destination());
    checks.extend(inbound());
    checks.extend(map_kinds());
    checks.extend([
        Check::required(
            "network namespace cookie",
            "5.14",
            "pods cannot be distinguished",
            node::netns_cookie(),
        ),
        Check::required(
            "BPF iterator over open files",
            "5.8",
            "running sidecars need a restart",
            node::iterator("bpf_iter_task_file"),
        ),
        Check::required(
            "BPF iterator over tasks",
            "5.8",
            "processes outside the pods' cgroup are not noticed",
            node::iterator("bpf_iter_task"),
        ),
        Check::optional(
            "accounting of what is queued past TCP",
            "6.14",
            "no pod is accelerated",
            acceleration::is_possible().is_ok(),
        )
        .of("accelerate"),
    ]);
    checks.extend(dns());
    checks
}

fn dns() -> [Check; 2] {
    const NO_DNS: &str = "DNS queries over UDP are not captured";
    [
        Check::optional(
            "cgroup/recvmsg4 and 6",
            "5.2",
            NO_DNS,
            programs::program(
                bpf_prog_type::BPF_PROG_TYPE_CGROUP_SOCK_ADDR,
                bpf_attach_type::BPF_CGROUP_UDP6_RECVMSG,
                None,
            )
            .is_ok(),
        ),
        Check::optional(
            "bpf_probe_read_kernel in cgroup/sendmsg4 and 6",
            "5.8, CAP_PERFMON",
            NO_DNS,
            programs::reads_of_kernel_memory().is_ok(),
        ),
    ]
    .map(|check| check.of("dns"))
}

fn outbound() -> [Check; 8] {
    let sock_addr = |attach_type, helper| {
        programs::program(
            bpf_prog_type::BPF_PROG_TYPE_CGROUP_SOCK_ADDR,
            attach_type,
            helper,
        )
    };
    let connect4 = bpf_attach_type::BPF_CGROUP_INET4_CONNECT;
    [
        Check::required(
            "cgroup/connect4",
            "4.17",
            NO_OUTBOUND,
            sock_addr(connect4, None),
        ),
        Check::required(
            "cgroup/connect6",
            "4.17",
            NO_OUTBOUND,
            sock_addr(bpf_attach_type::BPF_CGROUP_INET6_CONNECT, None),
        ),
        Check::required(
            "bpf_get_netns_cookie in connect",
            "5.7",
            NO_OUTBOUND,
            sock_addr(connect4, Some(bpf_func_id::BPF_FUNC_get_netns_cookie)),
        ),
        Check::required(
            "bpf_skc_to_tcp_sock and typed loads in connect",
            "5.11, CAP_PERFMON",
            "it is unknown who created a socket",
            programs::typed_loads(),
        ),
        Check::optional(
            "bpf_set_retval in connect",
            "5.18",
            "a refused connect always fails with EPERM",
            programs::set_retval(),
        ),
        Check::optional(
            "bpf_skc_to_mptcp_sock in connect",
            "5.19, CONFIG_MPTCP",
            "applications with MPTCP sockets see the sidecar as their peer",
            programs::mptcp_parent(),
        ),
        Check::required(
            "cgroup/getpeername4 and 6",
            "5.8",
            "applications see the sidecar as their peer",
            sock_addr(bpf_attach_type::BPF_CGROUP_INET4_GETPEERNAME, None),
        ),
        Check::required(
            "cgroup/getsockname4 and 6",
            "5.8",
            "applications see a loopback address as their own",
            sock_addr(bpf_attach_type::BPF_CGROUP_INET4_GETSOCKNAME, None),
        ),
    ]
}

fn original_destination() -> [Check; 6] {
    let sockops = |helper| {
        programs::program(
            bpf_prog_type::BPF_PROG_TYPE_SOCK_OPS,
            bpf_attach_type::BPF_CGROUP_SOCK_OPS,
            helper,
        )
    };
    [
        Check::required(
            "cgroup/sock_release",
            "5.9",
            "the memory that the sockets of a pod take has no limit",
            programs::program(
                bpf_prog_type::BPF_PROG_TYPE_CGROUP_SOCK,
                bpf_attach_type::BPF_CGROUP_INET_SOCK_RELEASE,
                None,
            ),
        ),
        Check::required("sockops", "4.13", NO_ORIGINAL_DESTINATION, sockops(None)),
        Check::required(
            "bpf_get_netns_cookie in sockops",
            "5.15",
            NO_ORIGINAL_DESTINATION,
            sockops(Some(bpf_func_id::BPF_FUNC_get_netns_cookie)),
        ),
        Check::required(
            "cgroup/getsockopt",
            "5.3",
            NO_ORIGINAL_DESTINATION,
            programs::program(
                bpf_prog_type::BPF_PROG_TYPE_CGROUP_SOCKOPT,
                bpf_attach_type::BPF_CGROUP_GETSOCKOPT,
                None,
            ),
        ),
        Check::required(
            "cgroup/setsockopt",
            "5.3",
            "an application leads its redirected connections past the sidecar with a socket option",
            programs::program(
                bpf_prog_type::BPF_PROG_TYPE_CGROUP_SOCKOPT,
                bpf_attach_type::BPF_CGROUP_SETSOCKOPT,
                None,
            ),
        ),
        Check::optional(
            "bpf_probe_read_kernel in cgroup/getsockopt",
            "5.8, CAP_PERFMON",
            "each connection of a proxy to the outside takes memory, and sidecars that hang are seen once their queues are full",
            programs::read_kernel(),
        ),
    ]
}

fn inbound() -> [Check; 3] {
    [
        Check::required(
            "sk_lookup",
            "5.9",
            NO_INBOUND,
            programs::program(
                bpf_prog_type::BPF_PROG_TYPE_SK_LOOKUP,
                bpf_attach_type::BPF_SK_LOOKUP,
                None,
            ),
        ),
        Check::optional(
            "ingress interface in sk_lookup",
            "5.17",
            "pods whose policy names interfaces, and pods in mode TPROXY, are not enrolled",
            programs::ingress_ifindex(),
        ),
        Check::optional(
            "programs on interfaces (tcx; before 6.6 tc filters)",
            "4.5",
            "connections that only pass through a pod are not captured, and pods that name virtual interfaces are not enrolled",
            programs::ingress_programs(),
        )
        .of("forward"),
    ]
}

fn map_kinds() -> [Check; 4] {
    [
        Check::required(
            "socket storage map",
            "5.2",
            "no connection can be remembered",
            maps::storage_map(),
        ),
        Check::required(
            "sockhash map with lookup",
            "4.18",
            NO_INBOUND,
            maps::map(bpf_map_type::BPF_MAP_TYPE_SOCKHASH, 8, 0),
        ),
        Check::required(
            "longest-prefix trie map",
            "4.11",
            "no routes, no CIDR lists",
            maps::map(bpf_map_type::BPF_MAP_TYPE_LPM_TRIE, 8, BPF_F_NO_PREALLOC),
        ),
        Check::required(
            "ring buffer map",
            "5.8",
            "the kernel programs cannot log",
            maps::ring_buffer(),
        ),
    ]
}
