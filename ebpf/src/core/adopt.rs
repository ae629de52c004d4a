//! Listeners that were open before their pod was enrolled. The agent runs this program over the open
//! files of a pod's processes: it puts the sockets that the agent wants into the listener map. The agent
//! never holds a descriptor of a pod, nor reads a text that a pod can make long.

use core::ffi::c_void;

use sidetrack_common::{
    addr::Family,
    conn::{Adopted, ListenerKey, Purpose, WantedListener},
    names::listener_slots,
};

use crate::maps;
use sidetrack_ebpf::ctx::task_file::{TaskFile, cookie};

const EEXIST: i32 = -17;

/// One open file of a process. Returns 0: continue with the next.
#[unsafe(no_mangle)]
#[unsafe(link_section = "iter/task_file")]
pub fn st_adopt(ctx: *mut c_void) -> i32 {
    let file = TaskFile::new(ctx);
    let Some(sk) = file.socket() else { return 0 };
    let socket = cookie(sk);
    if let Some(wanted) = maps::wanted_listener(socket, Purpose::Adopt)
        && wanted.adopted == 0
    {
        let v4 = wanted.v4 == 0 || add(sk, wanted, Family::V4);
        let v6 = wanted.v6 == 0 || add(sk, wanted, Family::V6);
        wanted.adopted = if v4 && v6 {
            Adopted::Complete as u32
        } else {
            Adopted::Failed as u32
        };
    }
    if let Some(wanted) = maps::wanted_listener(socket, Purpose::Find)
        && wanted.adopted == 0
    {
        wanted.fd = file.fd();
        wanted.adopted = Adopted::Complete as u32;
    }
    0
}

/// Stores the socket in the first free slot; whether it has one or does not need one.
#[inline(always)]
fn add(sk: *mut c_void, wanted: &WantedListener, family: Family) -> bool {
    for slot in 0..listener_slots(wanted.on_loopback as u16) {
        let key = ListenerKey {
            netns: wanted.netns,
            family: family as u16 | wanted.on_loopback as u16,
            port: wanted.port,
            slot,
        };
        match maps::add_socket(sk, &key) {
            Ok(()) => return true,
            Err(EEXIST) => {}
            Err(_) => return false,
        }
    }
    // The slots lead to the whole group, so this socket serves without one.
    true
}
