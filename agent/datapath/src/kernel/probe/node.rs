//! Tries what the kernel offers besides programs and maps.

use std::{
    fs,
    ops::ControlFlow,
    os::fd::AsFd as _,
    path::Path,
    time::{Duration, Instant},
};

use super::report::Problem;
use crate::kernel::{
    cgroup, kernel_layout,
    pins::Pins,
    sock_diag::{self, Sockets},
    sys,
};

pub(super) fn kernel_layout() -> Result<(), String> {
    kernel_layout::offsets()
        .map(drop)
        .map_err(|error| error.to_string())
}

pub(super) fn bpffs(path: &Path) -> Result<(), Problem> {
    mountable(
        "bpf",
        Pins::new(path).map(drop).map_err(|error| error.to_string()),
    )
}

pub(super) fn cgroup2(given: Option<&Path>) -> Result<(), Problem> {
    mountable(
        "cgroup2",
        cgroup::find(given)
            .map(drop)
            .map_err(|error| format!("{error:#}")),
    )
}

/// A file system that the kernel supports only needs to be mounted.
fn mountable(fs_type: &str, found: Result<(), String>) -> Result<(), Problem> {
    let known = fs::read_to_string("/proc/filesystems").unwrap_or_default();
    let known = known
        .lines()
        .any(|line| line.split_whitespace().last() == Some(fs_type));
    found.map_err(|problem| {
        if known {
            Problem::Unprepared(problem)
        } else {
            Problem::Missing(format!("the kernel has no file system {fs_type}"))
        }
    })
}

pub(super) fn sock_diag() -> Result<(), String> {
    let family = netlink_packet_sock_diag::constants::AF_INET;
    let until = Instant::now() + Duration::from_secs(1);
    // The first socket shows that the kernel answers.
    let first = |_| ControlFlow::Break(());
    sock_diag::visit(family, Sockets::Listening, until, first).map_err(|error| error.to_string())
}

pub(super) fn netns_cookie() -> Result<(), String> {
    const SO_NETNS_COOKIE: i32 = 71;
    let socket = std::net::UdpSocket::bind("127.0.0.1:0").map_err(|error| error.to_string())?;
    sys::socket_option_u64(socket.as_fd(), SO_NETNS_COOKIE)
        .map(drop)
        .map_err(|error| error.to_string())
}

pub(super) fn iterator(name: &str) -> Result<(), String> {
    match kernel_layout::has_function(name) {
        Ok(true) => Ok(()),
        Ok(false) => Err(format!("the kernel has no {name}")),
        Err(error) => Err(error.to_string()),
    }
}
