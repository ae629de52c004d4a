//! What is measured in turns.

use serde::{Deserialize, Serialize};

/// Destinations of a client that has many: ports of one address.
pub const DESTINATIONS: u16 = 50_000;

/// What is measured.
#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Field {
    /// connect(2) of the app, to the sidecar in its pod.
    Connect,
    /// A whole connection of the app: connect, SO_ORIGINAL_DST at the sidecar, a byte each way, close.
    Session,
    /// connect(2) from outside, to the sidecar's inbound port.
    Arrive,
    /// A whole connection from outside.
    ArriveSession,
    /// 64 bytes from the app to its sidecar and back, on an established connection.
    RoundTrip,
    /// 1 KiB there and back.
    RoundTrip1k,
    /// 16 KiB there and back.
    RoundTrip16k,
    /// connect(2) of the sidecar to the app, from the client's address (mode TPROXY).
    Transparent,
    /// A whole connection of it: connect, a byte each way, close.
    TransparentSession,
    /// 64 bytes there and back, on an established connection.
    TransparentRoundTrip,
    /// connect(2) of a machine behind the pod, to a service; the sidecar takes it.
    Forwarded,
    /// 1 MiB of it on an established connection, to the sidecar.
    ForwardedStream,
    /// 1 MiB of a machine behind the pod to a port that no rule captures, past the sidecar.
    PassingStream,
    /// connect(2) of the app over IPv6.
    ConnectV6,
    /// A whole connection of the app over IPv6.
    SessionV6,
    /// connect(2) from outside over IPv6.
    ArriveV6,
    /// A whole connection from outside over IPv6.
    ArriveSessionV6,
    /// 64 bytes there and back over IPv6.
    RoundTripV6,
    /// connect(2) of the proxy to its own pod, to the sidecar's inbound port.
    OwnPod,
    /// The same over IPv6.
    OwnPodV6,
    /// connect(2) of the proxy to the outside, which goes there directly.
    ProxyOut,
    /// connect(2) of the app to one of [`DESTINATIONS`] after the other.
    ManyDestinations,
    /// The same over IPv6.
    ManyDestinationsV6,
    /// A DNS query and its answer, all by one socket that is not connected.
    Query,
    /// The same with a connected socket for each: socket, connect, query, answer, close.
    ConnectedQuery,
    /// connect(2) of the app of a pod in ambient mode, to ztunnel.
    AmbientConnect,
    /// connect(2) from outside to such a pod, to ztunnel.
    AmbientArrive,
    /// 64 bytes from such an app to ztunnel and back, on an established connection.
    AmbientRoundTrip,
    /// 1 MiB of such an app on an established connection, to ztunnel.
    AmbientStream,
    /// A request through Envoy to a server outside, on an open connection.
    EnvoyRequest,
    /// A request through Envoy, each on a connection of its own.
    EnvoyConnection,
    /// A TCP connection through Envoy, with a byte each way.
    EnvoyTcp,
}

impl Field {
    /// Those with Envoy as the sidecar.
    pub const ENVOY: [Self; 3] = [Self::EnvoyRequest, Self::EnvoyConnection, Self::EnvoyTcp];

    /// Those with a machine behind the pod.
    pub const FORWARDING: [Self; 3] = [Self::Forwarded, Self::ForwardedStream, Self::PassingStream];

    /// Those with a DNS server.
    pub const QUERIES: [Self; 2] = [Self::Query, Self::ConnectedQuery];

    /// Those with pods in ambient mode.
    pub const AMBIENT: [Self; 4] = [
        Self::AmbientConnect,
        Self::AmbientArrive,
        Self::AmbientRoundTrip,
        Self::AmbientStream,
    ];

    /// The others.
    pub const ALL: [Self; 20] = [
        Self::Connect,
        Self::Session,
        Self::Arrive,
        Self::ArriveSession,
        Self::RoundTrip,
        Self::RoundTrip1k,
        Self::RoundTrip16k,
        Self::Transparent,
        Self::TransparentSession,
        Self::TransparentRoundTrip,
        Self::ConnectV6,
        Self::SessionV6,
        Self::ArriveV6,
        Self::ArriveSessionV6,
        Self::RoundTripV6,
        Self::OwnPod,
        Self::OwnPodV6,
        Self::ProxyOut,
        Self::ManyDestinations,
        Self::ManyDestinationsV6,
    ];

    /// In words.
    #[must_use]
    pub fn title(self) -> &'static str {
        match self {
            Self::Connect => "Outbound: the app's connect(2) to the sidecar",
            Self::Session => "Outbound: connect, SO_ORIGINAL_DST, a byte each way, close",
            Self::Arrive => "Inbound: connect(2) from outside to the sidecar",
            Self::ArriveSession => "Inbound: connect, SO_ORIGINAL_DST, a byte each way, close",
            Self::RoundTrip => "Round trip of 64 bytes, app to sidecar, connection established",
            Self::RoundTrip1k => "Round trip of 1 KiB, app to sidecar, connection established",
            Self::RoundTrip16k => "Round trip of 16 KiB, app to sidecar, connection established",
            Self::Transparent => {
                "TPROXY: the sidecar's connect(2) to the app from the client's address"
            }
            Self::TransparentSession => {
                "TPROXY: the sidecar to the app: connect, a byte each way, close"
            }
            Self::TransparentRoundTrip => {
                "TPROXY: round trip of 64 bytes, sidecar to app, connection established"
            }
            Self::Forwarded => "Forwarded: connect(2) of a machine behind the pod to the sidecar",
            Self::ForwardedStream => {
                "Forwarded: 1 MiB of a machine behind the pod to the sidecar, connection established"
            }
            Self::PassingStream => {
                "Forwarded: 1 MiB of a machine behind the pod past the sidecar, connection established"
            }
            Self::ConnectV6 => "IPv6, outbound: the app's connect(2) to the sidecar",
            Self::SessionV6 => "IPv6, outbound: connect, SO_ORIGINAL_DST, a byte each way, close",
            Self::ArriveV6 => "IPv6, inbound: connect(2) from outside to the sidecar",
            Self::ArriveSessionV6 => {
                "IPv6, inbound: connect, SO_ORIGINAL_DST, a byte each way, close"
            }
            Self::RoundTripV6 => {
                "IPv6: round trip of 64 bytes, app to sidecar, connection established"
            }
            Self::OwnPod => "The proxy's connect(2) to its own pod, to its inbound port",
            Self::OwnPodV6 => "IPv6: the proxy's connect(2) to its own pod, to its inbound port",
            Self::ProxyOut => "The proxy's connect(2) to the outside",
            Self::ManyDestinations => "Outbound: connect(2) to 50,000 destinations in turn",
            Self::ManyDestinationsV6 => "IPv6, outbound: connect(2) to 50,000 destinations in turn",
            Self::Query => "DNS: query and answer, by one socket that is not connected",
            Self::ConnectedQuery => {
                "DNS: query and answer, by a connected socket for each (from socket to close)"
            }
            Self::AmbientConnect => "Ambient, outbound: the app's connect(2) to ztunnel",
            Self::AmbientArrive => "Ambient, inbound: connect(2) from outside to ztunnel",
            Self::AmbientRoundTrip => {
                "Ambient: round trip of 64 bytes, app to ztunnel, connection established"
            }
            Self::AmbientStream => "Ambient: 1 MiB from the app to ztunnel, connection established",
            Self::EnvoyRequest => "HTTP request through Envoy, keep-alive (cpu: of the client)",
            Self::EnvoyConnection => {
                "HTTP request through Envoy, a connection for each (cpu: of the client)"
            }
            Self::EnvoyTcp => {
                "TCP through Envoy: connect, a byte each way, close (cpu: of the client)"
            }
        }
    }

    /// Whether the client is outside of the pod.
    #[must_use]
    pub fn is_inbound(self) -> bool {
        matches!(
            self,
            Self::Arrive | Self::ArriveSession | Self::ArriveV6 | Self::ArriveSessionV6
        )
    }

    /// Whether the proxy connects to its own pod.
    #[must_use]
    pub fn is_own_pod(self) -> bool {
        matches!(self, Self::OwnPod | Self::OwnPodV6)
    }

    /// How many destinations the client has.
    #[must_use]
    pub fn destinations(self) -> u16 {
        match self {
            Self::ManyDestinations | Self::ManyDestinationsV6 => DESTINATIONS,
            _ => 1,
        }
    }

    /// Whether it is over IPv6.
    #[must_use]
    pub fn is_v6(self) -> bool {
        matches!(
            self,
            Self::ConnectV6
                | Self::SessionV6
                | Self::ArriveV6
                | Self::ArriveSessionV6
                | Self::RoundTripV6
                | Self::OwnPodV6
                | Self::ManyDestinationsV6
        )
    }

    /// Whether the sidecar connects to the app from the client's address.
    #[must_use]
    pub fn is_transparent(self) -> bool {
        matches!(
            self,
            Self::Transparent | Self::TransparentSession | Self::TransparentRoundTrip
        )
    }

    /// Bytes of a round trip.
    #[must_use]
    pub fn round_trip(self) -> Option<usize> {
        match self {
            Self::RoundTrip
            | Self::RoundTripV6
            | Self::TransparentRoundTrip
            | Self::AmbientRoundTrip => Some(64),
            Self::RoundTrip1k => Some(1024),
            Self::RoundTrip16k => Some(16 * 1024),
            _ => None,
        }
    }
}
