//! What is measured in turns.

use serde::{Deserialize, Serialize};

/// Destinations of a client that has many: ports of one address.
pub const DESTINATIONS: u16 = 50_000;

macro_rules! fields {
    ($($(#[$about:meta])+ $list:ident { $($field:ident $title:literal,)+ })+) => {
        /// What is measured.
        #[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
        #[serde(rename_all = "kebab-case")]
        pub enum Field {
            $($(#[doc = $title] $field,)+)+
        }

        impl Field {
            $($(#[$about])+ pub const $list: &[Self] = &[$(Self::$field),+];)+

            /// In words.
            #[must_use]
            pub fn title(self) -> &'static str {
                match self {
                    $($(Self::$field => $title,)+)+
                }
            }
        }
    };
}

fields! {
    /// Those without further machines or programs.
    ALL {
        Connect "Outbound: the app's connect(2) to the sidecar",
        Session "Outbound: connect, SO_ORIGINAL_DST, a byte each way, close",
        Arrive "Inbound: connect(2) from outside to the sidecar",
        ArriveSession "Inbound: connect, SO_ORIGINAL_DST, a byte each way, close",
        RoundTrip "Round trip of 64 bytes, app to sidecar, connection established",
        RoundTrip1k "Round trip of 1 KiB, app to sidecar, connection established",
        RoundTrip16k "Round trip of 16 KiB, app to sidecar, connection established",
        Transparent "TPROXY: the sidecar's connect(2) to the app from the client's address",
        TransparentSession "TPROXY: the sidecar to the app: connect, a byte each way, close",
        TransparentRoundTrip "TPROXY: round trip of 64 bytes, sidecar to app, connection established",
        ConnectV6 "IPv6, outbound: the app's connect(2) to the sidecar",
        SessionV6 "IPv6, outbound: connect, SO_ORIGINAL_DST, a byte each way, close",
        ArriveV6 "IPv6, inbound: connect(2) from outside to the sidecar",
        ArriveSessionV6 "IPv6, inbound: connect, SO_ORIGINAL_DST, a byte each way, close",
        RoundTripV6 "IPv6: round trip of 64 bytes, app to sidecar, connection established",
        OwnPod "The proxy's connect(2) to its own pod, to its inbound port",
        OwnPodV6 "IPv6: the proxy's connect(2) to its own pod, to its inbound port",
        ProxyOut "The proxy's connect(2) to the outside",
        ManyDestinations "Outbound: connect(2) to 50,000 destinations in turn",
        ManyDestinationsV6 "IPv6, outbound: connect(2) to 50,000 destinations in turn",
    }
    /// Those with a machine behind the pod.
    FORWARDING {
        Forwarded "Forwarded: connect(2) of a machine behind the pod to the sidecar",
        ForwardedStream "Forwarded: 1 MiB of a machine behind the pod to the sidecar, connection established",
        PassingStream "Forwarded: 1 MiB of a machine behind the pod past the sidecar, connection established",
    }
    /// Those with a DNS server.
    QUERIES {
        Query "DNS: query and answer, by one socket that is not connected",
        ConnectedQuery "DNS: query and answer, by a connected socket for each (from socket to close)",
    }
    /// Those with pods in ambient mode.
    AMBIENT {
        AmbientConnect "Ambient, outbound: the app's connect(2) to ztunnel",
        AmbientArrive "Ambient, inbound: connect(2) from outside to ztunnel",
        AmbientRoundTrip "Ambient: round trip of 64 bytes, app to ztunnel, connection established",
        AmbientStream "Ambient: 1 MiB from the app to ztunnel, connection established",
    }
    /// Those with Envoy as the sidecar.
    ENVOY {
        EnvoyRequest "HTTP request through Envoy, keep-alive (cpu: of the client)",
        EnvoyConnection "HTTP request through Envoy, a connection for each (cpu: of the client)",
        EnvoyTcp "TCP through Envoy: connect, a byte each way, close (cpu: of the client)",
    }
}

impl Field {
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
