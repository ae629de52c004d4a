//! Names of programs, maps and pins: written once, because users meet them in `bpftool`.

/// Directory below the bpffs mount that holds everything sidetrack pins.
pub const PIN_ROOT: &str = "sidetrack";

/// Pod rows by network namespace cookie.
pub const POD_BY_NETNS: &str = "POD_BY_NETNS";
/// Policies by id.
pub const POLICY_BY_ID: &str = "POLICY_BY_ID";
/// Port lists of policies.
pub const PORT_RULES: &str = "PORT_RULES";
/// CIDR lists of policies.
pub const RANGE_RULES: &str = "RANGE_RULES";
/// Owner lists of policies.
pub const OWNER_RULES: &str = "OWNER_RULES";
/// Each pod's routes.
pub const ROUTE_BY_POD: &str = "ROUTE_BY_POD";
/// Each pod's interfaces that rules name.
pub const IFACE_BY_POD: &str = "IFACE_BY_POD";
/// Redirected connections in the middle of their handshake.
pub const HANDSHAKES: &str = "HANDSHAKES";
/// How many rows [`HANDSHAKES`] has.
pub const HANDSHAKE_COUNT: &str = "HANDSHAKE_COUNT";
/// How many of them each pod has.
pub const HANDSHAKES_BY_POD: &str = "HANDSHAKES_BY_POD";
/// What a socket keeps about its redirected connection.
pub const RECORD_BY_SOCK: &str = "RECORD_BY_SOCK";
/// The sidecars' inbound listeners.
pub const LISTENERS: &str = "LISTENERS";
/// The program that judges arrivals, for the pods' programs to continue in.
pub const ARRIVAL_PROGRAM: &str = "ARRIVAL_PROGRAM";
/// Which pod an arrival is at, from its program to [`ARRIVAL_PROGRAM`].
pub const ARRIVAL_NETNS: &str = "ARRIVAL_NETNS";
/// Connections counted by the rule that decided them.
pub const COUNT_BY_RULE: &str = "COUNT_BY_RULE";

/// Pods whose sidecar has never listened, of those that are to reach the network till then.
pub const BEFORE_SIDECAR: &str = "BEFORE_SIDECAR";

/// Rows [`HANDSHAKES`] can hold. A connection is refused when fewer than
/// [`HANDSHAKE_RESERVE`] are free.
pub const HANDSHAKE_CAPACITY: u32 = 65_536;
/// Rows kept free for connections that were allowed while the table was filling up.
pub const HANDSHAKE_RESERVE: u32 = 1_024;
/// Rows of [`HANDSHAKES`] that one pod may have: a pod whose sidecar hangs must leave room for the
/// others. Far more than any sidecar that works ever has in flight.
pub const HANDSHAKE_SHARE: u32 = HANDSHAKE_CAPACITY / 8;

/// Listener slots per pod. One suffices for the kernel to find a whole reuse_port group; the rest
/// let inbound go on when some of the group close.
pub const LISTENER_SLOTS: u32 = 32;
