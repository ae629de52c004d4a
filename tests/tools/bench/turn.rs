//! One contestant's turn.

use anyhow::Result;
use serde::{Deserialize, Serialize};

use crate::{
    field::Field,
    pods::{Contestant, SIDECAR},
    worker::Answer,
};

/// What one turn brought, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct Turn {
    /// The median.
    pub p50: u64,
    /// 99 of 100 were not longer.
    pub p99: u64,
    /// Processor time of both ends for each.
    pub cpu: u64,
}

/// Bytes that are poured at a time.
const STREAM: usize = 1 << 20;

/// Takes it: so many connections or round trips.
pub fn turn(contestant: &Contestant<'_>, field: Field, times: u32) -> Result<Turn> {
    let Contestant {
        client, server, to, ..
    } = contestant;
    let (at_client, at_server) = match field {
        Field::Connect
        | Field::ConnectV6
        | Field::Arrive
        | Field::ArriveV6
        | Field::OwnPod
        | Field::OwnPodV6
        | Field::ProxyOut
        | Field::Transparent
        | Field::AmbientConnect
        | Field::AmbientArrive
        | Field::Forwarded => {
            let measured = client.ask(&format!("connect {to} {times}"))?;
            (measured, server.ask("drain")?)
        }
        Field::ManyDestinations | Field::ManyDestinationsV6 => {
            // Without interception the sidecar's port is the only one that is open: as many addresses of the pod.
            let vary = if to.port() == SIDECAR {
                "connect-addresses"
            } else {
                "connect-ports"
            };
            let destinations = field.destinations();
            let measured = client.ask(&format!("{vary} {to} {times} {destinations}"))?;
            (measured, server.ask("drain")?)
        }
        Field::Session
        | Field::SessionV6
        | Field::ArriveSession
        | Field::ArriveSessionV6
        | Field::TransparentSession => {
            server.send(&format!("serve {times}"))?;
            let measured = client.ask(&format!("session {to} {times}"))?;
            (measured, server.answer()?)
        }
        Field::RoundTrip
        | Field::RoundTripV6
        | Field::RoundTrip1k
        | Field::RoundTrip16k
        | Field::TransparentRoundTrip
        | Field::AmbientRoundTrip => {
            let size = field.round_trip().unwrap_or_default();
            server.send("echo")?;
            let measured = client.ask(&format!("round-trip {to} {times} {size}"))?;
            (measured, server.answer()?)
        }
        Field::ForwardedStream | Field::PassingStream | Field::AmbientStream => {
            server.send(&format!("drink {STREAM}"))?;
            let measured = client.ask(&format!("pour {to} {times} {STREAM}"))?;
            (measured, server.answer()?)
        }
        Field::Query | Field::ConnectedQuery => {
            let how = if field == Field::Query {
                "query"
            } else {
                "connected-query"
            };
            server.send(&format!("answer {times}"))?;
            let measured = client.ask(&format!("{how} {to} {times}"))?;
            (measured, server.answer()?)
        }
        // The server continues by itself; Envoy's processor time is not measured here.
        Field::EnvoyRequest | Field::EnvoyConnection | Field::EnvoyTcp => {
            let how = match field {
                Field::EnvoyRequest => "request",
                Field::EnvoyConnection => "requests",
                _ => "session",
            };
            let measured = client.ask(&format!("{how} {to} {times}"))?;
            (measured, Answer::default())
        }
    };
    Ok(Turn {
        p50: at_client.p50,
        p99: at_client.p99,
        cpu: (at_client.cpu + at_server.cpu) / u64::from(times.max(1)),
    })
}
