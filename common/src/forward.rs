//! Packets that only pass through a pod: what the program on its interfaces and the one that decides inbound
//! connections say to each other.

/// The mark of packets that are delivered in the pod although they are for another host. A routing rule of the pod
/// leads them to [`TABLE`].
///
/// It has no bit of kube-proxy (0x4000), kubelet (0x8000), Cilium (0x0f00) or Calico (0xffff_0000), which may run in a
/// pod, in a cluster inside it: all TCP packets that enter such a pod and have a socket get the mark.
pub const MARK: u32 = 0x10de;

/// The routing table of marked packets: everything is local.
pub const TABLE: u32 = 0x51de;

/// A question to the program that decides inbound connections, or its answer. The value of the per-CPU row that
/// both programs use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Probe {
    /// No question: the lookup is for a packet that is being delivered.
    NotAsked = 0,
    /// The packet begins no connection: do not decide.
    Established = 1,
    /// Decide and count.
    Syn = 2,
    /// The rules leave the connection alone.
    Untouched = 3,
    /// The result of the lookup is the sidecar's listener.
    Redirected = 4,
    /// The rules capture it, and the sidecar cannot have it.
    Refused = 5,
    /// As [`Probe::Redirected`], and the destination is an address of the pod.
    RedirectedOwn = 6,
    /// The rules capture it. The sidecar's listener is not among those that sk_lookup can choose: look it up at the port in
    /// the upper half of the row.
    AtPort = 7,
    /// A question: the listener was not there. Count that.
    NotServed = 8,
}

/// Position of the port in the row, see [`Probe::AtPort`].
pub const PORT_SHIFT: u32 = 16;
