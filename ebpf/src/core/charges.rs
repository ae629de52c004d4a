//! What the records of all sockets count as. The agent reads this program's output, and corrects the counts: a connection
//! whose listener is closed before it is accepted ends without [`super::sock_release`], and one whose peer does not close
//! has its record long after that.

use core::ffi::c_void;

use sidetrack_common::conn::Charge;

use sidetrack_ebpf::ctx::sk_storage::Stored;

/// One socket. Returns 0: continue with the next.
#[unsafe(no_mangle)]
#[unsafe(link_section = "iter/bpf_sk_storage_map")]
pub fn st_charges(ctx: *mut c_void) -> i32 {
    if let Some(stored) = Stored::new(ctx) {
        let (netns, charge) = stored.counted();
        if charge > 0 {
            stored.write(&Charge {
                netns,
                charge: charge.into(),
            });
        }
    }
    0
}
