//! What sidetrack does without on some kernels, and some tests cannot. Such a test names it beside its function:
//! `kernel_test!(function, needs INGRESS_INTERFACE)`.

use std::process::Command;

use sidetrack_datapath::kernel::{acceleration, probe};

/// What a kernel may lack.
#[derive(Debug)]
pub struct Facility {
    /// Its name, and the first release of Linux to have it.
    pub name: &'static str,
    /// That release, if every configuration has it from there on.
    since: Option<(u32, u32)>,
    /// Tries it, as the agent does.
    pub is_there: fn() -> bool,
}

impl Facility {
    /// Whether a kernel without it, by its own word, should have it: then the probe is wrong, and no test is skipped for it.
    pub fn is_expected(&self) -> bool {
        let release = nix::sys::utsname::uname();
        let release = release.as_ref().ok().and_then(|it| it.release().to_str());
        let mut numbers = release.unwrap_or_default().split('.').map(str::parse);
        let version = match (numbers.next(), numbers.next()) {
            (Some(Ok(major)), Some(Ok(minor))) => (major, minor),
            _ => (0, 0),
        };
        self.since.is_some_and(|since| version >= since)
    }
}

/// Policies that name interfaces, TPROXY, ambient mode and targets of IPv6 depend on it.
pub const INGRESS_INTERFACE: Facility = Facility {
    name: "the ingress interface in sk_lookup (5.17)",
    since: Some((5, 17)),
    is_there: probe::ingress_ifindex,
};

/// The names that an application with MPTCP sockets sees.
pub const MPTCP_PARENT: Facility = Facility {
    name: "bpf_skc_to_mptcp_sock in connect (5.19)",
    since: None,
    is_there: probe::mptcp_parent,
};

/// Calls of the node to pods in ambient mode.
pub const NODE_CALLS: Facility = Facility {
    name: "tcx links, and bpf_sk_assign for listeners with SO_REUSEPORT (6.6)",
    since: Some((6, 6)),
    is_there: || probe::ingress_links() && probe::shared_listeners(),
};

/// Acceleration.
pub const QUEUE_ACCOUNTING: Facility = Facility {
    name: "accounting of a socket's queue past TCP (6.14)",
    since: Some((6, 14)),
    is_there: || acceleration::is_possible().is_ok(),
};

/// Pods of the macvlan plugin.
pub const MACVLAN: Facility = Facility {
    name: "macvlan",
    since: None,
    is_there: || has_interfaces_of("macvlan"),
};

/// Pods of the ipvlan plugin.
pub const IPVLAN: Facility = Facility {
    name: "ipvlan",
    since: None,
    is_there: || has_interfaces_of("ipvlan"),
};

/// Whether interfaces of this type can be made. Their parent is the pair of a namespace that goes with the process.
fn has_interfaces_of(kind: &str) -> bool {
    let script = format!(
        "ip link add one type veth peer name two && ip link add link one name three type {kind}"
    );
    let mut made = Command::new("unshare");
    made.args(["--net", "sh", "-c", &script]);
    made.output().is_ok_and(|made| made.status.success())
}

/// The errno of a connect that sidetrack refuses: the expected one, or EPERM where programs cannot choose it (before 5.18).
pub fn refusal(errno: i32) -> i32 {
    if probe::set_retval() {
        errno
    } else {
        libc::EPERM
    }
}
