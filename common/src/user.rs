//! Userspace's permission to copy the shared types in and out of maps.

use crate::{conn, pod, policy};

macro_rules! plain_old_data {
    ($($ty:ty),+ $(,)?) => { $(
        // SAFETY: `repr(C)` of integers and byte arrays with explicit padding: every bit pattern
        // is a value and no byte is uninitialized; the size assertions beside the type hold this.
        #[expect(unsafe_code, reason = "aya::Pod is an unsafe trait")]
        unsafe impl aya::Pod for $ty {}
    )+ };
}

plain_old_data!(
    conn::CountKey,
    conn::Handshake,
    conn::HandshakeKey,
    conn::ListenerKey,
    conn::SockRecord,
    pod::IfaceKey,
    pod::IfaceRow,
    pod::Pod,
    pod::Route,
    pod::RouteKey,
    policy::OwnerKey,
    policy::Policy,
    policy::PortKey,
    policy::RangeKey,
);
