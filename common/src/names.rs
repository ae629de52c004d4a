//! Names of maps and pins, which users see in `bpftool`, and the sizes of maps.

/// Directory below the bpffs mount that holds everything sidetrack pins.
pub const PIN_ROOT: &str = "sidetrack";

/// Pod rows by network namespace cookie.
pub const POD_BY_NETNS: &str = "POD_BY_NETNS";
/// Policies by id.
pub const POLICY_BY_ID: &str = "POLICY_BY_ID";
/// Port lists of policies.
pub const PORT_RULES: &str = "PORT_RULES";
/// Rows of [`PORT_RULES`].
pub const PORT_RULES_CAPACITY: usize = 131_072;
/// CIDR lists of policies.
pub const RANGE_RULES: &str = "RANGE_RULES";
/// Rows of [`RANGE_RULES`].
pub const RANGE_RULES_CAPACITY: usize = 131_072;
/// Owner lists of policies.
pub const OWNER_RULES: &str = "OWNER_RULES";
/// Rows of [`OWNER_RULES`].
pub const OWNER_RULES_CAPACITY: usize = 16_384;
/// Each pod's routes.
pub const ROUTE_BY_POD: &str = "ROUTE_BY_POD";
/// Rows of [`ROUTE_BY_POD`].
pub const ROUTE_CAPACITY: usize = 131_072;
/// What chooses between the views of pods' routes.
pub const SELECTORS_BY_POD: &str = "SELECTORS_BY_POD";
/// Each pod's interfaces that rules name.
pub const IFACE_BY_POD: &str = "IFACE_BY_POD";
/// Rows of [`IFACE_BY_POD`].
pub const IFACE_CAPACITY: usize = 65_536;
/// Redirected connections in the middle of their handshake.
pub const HANDSHAKES: &str = "HANDSHAKES";
/// How many rows [`HANDSHAKES`] has.
pub const HANDSHAKE_COUNT: &str = "HANDSHAKE_COUNT";
/// Connections that needed a row there, by [`HandshakeReason`](crate::conn::HandshakeReason).
pub const HANDSHAKES_BY_REASON: &str = "HANDSHAKES_BY_REASON";
/// How many of them each pod has.
pub const HANDSHAKES_BY_POD: &str = "HANDSHAKES_BY_POD";
/// Records of single sockets: the dialed address of a redirected connection.
pub const RECORD_BY_SOCK: &str = "RECORD_BY_SOCK";
/// How many of them each pod has.
pub const RECORDS_BY_POD: &str = "RECORDS_BY_POD";
/// Listeners on the sidecars' capture ports.
pub const LISTENERS: &str = "LISTENERS";
/// Open listeners that the agent looks for; not pinned.
pub const WANTED_LISTENER: &str = "WANTED_LISTENER";
/// The program that decides inbound connections: every pod's program tail calls it.
pub const INBOUND_PROGRAM: &str = "INBOUND_PROGRAM";
/// The pod of the inbound connection, passed from its program to [`INBOUND_PROGRAM`].
pub const INBOUND_NETNS: &str = "INBOUND_NETNS";
/// What the program of forwarded packets and [`INBOUND_PROGRAM`] say to each other.
pub const FORWARD_PROBE: &str = "FORWARD_PROBE";
/// Network namespaces whose processes the agent asks for; not pinned.
pub const WATCHED_NETNS: &str = "WATCHED_NETNS";
/// The state of a pass over the kernel's tasks; not pinned.
pub const TASK_PASS: &str = "TASK_PASS";
/// Connections counted by the rule that decided them.
pub const COUNT_BY_RULE: &str = "COUNT_BY_RULE";
/// How many rows of [`COUNT_BY_RULE`] each pod has.
pub const COUNTERS_BY_POD: &str = "COUNTERS_BY_POD";
/// Connections of pods that have no room in [`COUNT_BY_RULE`], by rule alone.
pub const OVERFLOW_BY_POD: &str = "OVERFLOW_BY_POD";

/// Pods that bypass their sidecar because it has not listened yet.
pub const BEFORE_SIDECAR: &str = "BEFORE_SIDECAR";

/// What the kernel has seen of pods' sidecars, in bits.
pub const SIDECAR_BY_POD: &str = "SIDECAR_BY_POD";
/// Bit: the last listener at the outbound capture port is on loopback. The program in sk_lookup chooses it.
pub const LOOPBACK_OUTBOUND: u32 = 1;
/// Bit: the last listener at the inbound capture port is on loopback, or rules of iptables redirect the proxy's calls to its own
/// pod. These calls then go to the plain target.
pub const LOOPBACK_INBOUND: u32 = 2;
/// Bit: the last listener at the outbound capture port is an MPTCP socket, which no map of sockets can hold.
pub const MPTCP_OUTBOUND: u32 = 4;
/// Bit: the same at the inbound capture port. The program at the pod's interfaces gives it inbound connections.
pub const MPTCP_INBOUND: u32 = 8;
/// Bit: a connection that only passes through the pod was captured. Its listeners must be transparent.
pub const FORWARDED: u32 = 16;

/// Destinations of enrolled pods, by the target that names them.
pub const DESTINATIONS: &str = "DESTINATIONS";
/// How many of them each pod has.
pub const DESTINATIONS_BY_POD: &str = "DESTINATIONS_BY_POD";

/// The node's secret that the targets of destinations depend on.
pub const TARGET_SEED: &str = "TARGET_SEED";

/// Whether another program translates destinations of proxies' connections to addresses of their pods, and
/// whether proxies in mode TPROXY call their own pods.
pub const TRANSLATION: &str = "TRANSLATION";

/// Sockets of accelerated connections.
pub const ACCELERATED: &str = "ACCELERATED";
/// What each end of an accelerated connection has sent.
pub const FLOWS: &str = "FLOWS";

/// Whether anybody traces connections.
pub const TRACING: &str = "TRACING";
/// Events for those who trace.
pub const EVENTS: &str = "EVENTS";
/// The last refusal of each pod and reason.
pub const LAST_REFUSAL: &str = "LAST_REFUSAL";

/// Bytes of [`EVENTS`]: room for 8,700 events.
pub const EVENTS_BYTES: u32 = 1 << 20;

/// Pods that a node can have enrolled.
pub const MAX_PODS: u32 = 4_096;

/// Rows [`HANDSHAKES`] can hold.
pub const HANDSHAKE_CAPACITY: u32 = 65_536;
/// Rows that every pod can have at any time, however many the others have. A handshake with a working sidecar takes
/// microseconds.
pub const HANDSHAKE_GUARANTEE: u32 = 8;
/// Rows for what pods have beyond their guarantee. A connection is refused when fewer than [`HANDSHAKE_RESERVE`] and
/// [`HANDSHAKE_TRANSLATED`] of them are free.
pub const HANDSHAKE_POOL: u32 = HANDSHAKE_CAPACITY - MAX_PODS * HANDSHAKE_GUARANTEE;
/// Rows kept free for connections that were allowed while the table was filling up.
pub const HANDSHAKE_RESERVE: u32 = 1_024;
/// Rows of the pool that redirected connections leave to those whose destination a socket load balancer has translated, so
/// that pods whose sidecars hang rarely lead others' past their sidecars. A pod's guarantee is the only certain part.
pub const HANDSHAKE_TRANSLATED: u32 = 4_096;
/// Rows of [`HANDSHAKES`] that one pod may have, capped so that a pod whose sidecar hangs leaves room
/// for the others. A working sidecar has far fewer handshakes in flight.
pub const HANDSHAKE_QUOTA: u32 = HANDSHAKE_CAPACITY / 8;
// Every pod can have its guarantee while the pool is used up.
const _: () = assert!(HANDSHAKE_POOL + MAX_PODS * HANDSHAKE_GUARANTEE == HANDSHAKE_CAPACITY);
// Several pods can have their full quota at once.
const _: () = assert!(HANDSHAKE_QUOTA > HANDSHAKE_GUARANTEE);
const _: () =
    assert!(HANDSHAKE_QUOTA <= (HANDSHAKE_POOL - HANDSHAKE_TRANSLATED - HANDSHAKE_RESERVE) / 3);

/// Rows of [`COUNT_BY_RULE`] that one pod may have. What it has beyond them, and what finds no room, counts in
/// [`OVERFLOW_BY_POD`].
pub const COUNTER_QUOTA: u32 = 4_096;

/// Rows [`DESTINATIONS`] can hold.
pub const DESTINATION_CAPACITY: usize = 262_144;
/// Rows of [`DESTINATIONS`] that each pod may have as long as there is room. Those beyond it are from
/// [`DESTINATION_POOL`].
pub const DESTINATION_QUOTA: u64 = 4_096;
/// Rows that all pods together may have beyond their quota, so that a few pods with many destinations leave room for
/// the others. Connections to further destinations are redirected as well; they cost a handshake row and socket storage
/// each.
pub const DESTINATION_POOL: u64 = DESTINATION_CAPACITY as u64 / 2;
// A pod may have many more with it, and leaves room for the quotas of the others.
const _: () = assert!(DESTINATION_POOL > DESTINATION_QUOTA);
const _: () = assert!(DESTINATION_POOL + DESTINATION_QUOTA <= DESTINATION_CAPACITY as u64);
/// Records of sockets that every pod can have, however many the others have.
pub const RECORD_GUARANTEE: i64 = 8;
/// Records that all pods together may have; beyond it each has what is guaranteed. One takes 320 bytes of kernel
/// memory: 21 MB in all, and 10 MB more for 4,096 pods with their guaranteed ones.
pub const RECORD_POOL: i64 = 65_536;
/// Records that one pod may have. A redirected connection without a dedicated target has one at each end.
pub const RECORD_QUOTA: i64 = 16_384;
// Several pods can have their full quota at once.
const _: () = assert!(RECORD_QUOTA <= RECORD_POOL / 4);

/// Key of the number for all pods: in [`DESTINATIONS_BY_POD`] of the rows in use of [`DESTINATION_POOL`], in
/// [`RECORDS_BY_POD`] of all records. No namespace has this cookie.
pub const POOL_IN_USE: u64 = 0;

/// Network namespaces that the agent can ask for at a time: every enrolled pod, and those that leave.
pub const MAX_WATCHED_NETNS: u32 = 8_192;

/// Listener slots on loopback. Sidecars that listen there do so on one socket.
pub const LOOPBACK_SLOTS: u32 = 4;

/// Listener slots for one port and family of a pod. Through one listener the kernel finds the whole reuse_port group.
/// The other slots keep inbound connections working when some listeners of the group close.
pub const LISTENER_SLOTS: u32 = 32;

/// Slots that listeners of a place have, [`ON_LOOPBACK`](crate::conn::ON_LOOPBACK) or 0.
#[inline(always)]
#[must_use]
pub const fn listener_slots(place: u16) -> u32 {
    match place {
        0 => LISTENER_SLOTS,
        _ => LOOPBACK_SLOTS,
    }
}
