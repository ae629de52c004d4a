//! What is tried, and what has to come of it. No I/O.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::manifests::{
    APP, AS_PROXY, EXCLUDED_IN, EXCLUDED_OUT, HEALTH, IN, IN_PEER, OUT, OUT_PEER, PORT,
    SERVICE_PORT,
};

/// What a call in a pod has seen.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct CaseAnswer {
    /// Why there was no answer, such as `ECONNREFUSED`.
    pub error: Option<String>,
    /// getpeername of the caller.
    pub peer: String,
    /// getsockname of the caller.
    pub own: String,
    /// Of HTTP.
    pub status: u16,
    /// With lower case names.
    pub headers: BTreeMap<String, String>,
    /// What the server sees, if it is an app of this test.
    pub body: String,
}

/// What an app sees of a connection.
#[derive(Debug, Default, Deserialize)]
struct Server {
    peer: String,
}

/// The addresses of one run.
#[derive(Clone, Debug, Default)]
pub struct Addresses {
    pub service: String,
    pub server: String,
    pub client: String,
    pub plain: String,
    pub down: String,
}

/// Decides whether an answer is right. What was seen, or what is wrong.
type Check = fn(&Addresses, &CaseAnswer) -> Result<String, String>;

/// One connection.
pub struct Case {
    /// The pod and the container it comes from.
    pub from: (&'static str, &'static str),
    /// Where to.
    pub to: fn(&Addresses) -> (&str, u16),
    /// What is promised of it.
    pub promises: &'static [(&'static str, Check)],
}

/// Everything that is tried.
pub const CASES: &[Case] = &[
    Case {
        from: ("client", APP),
        to: |at| (&at.service, SERVICE_PORT),
        promises: &[
            (
                "outbound: a connection to a Service goes through the sidecar, which gets the dialed address",
                |at, seen| is(seen, OUT, &socket(&at.service, SERVICE_PORT)),
            ),
            (
                "outbound: the sidecar's peer is the app's own socket",
                |_, seen| is(seen, OUT_PEER, &seen.own),
            ),
            ("names: getpeername is the dialed address", |at, seen| {
                equal(
                    "getpeername",
                    &seen.peer,
                    &socket(&at.service, SERVICE_PORT),
                )
            }),
            ("names: getsockname has the pod's address", |at, seen| {
                host("getsockname", &seen.own, &at.client)
            }),
            (
                "inbound: the server's sidecar gets the pod's address and the app's port",
                |at, seen| is(seen, IN, &socket(&at.server, PORT)),
            ),
            (
                "inbound: the server's app is called from 127.0.0.6",
                |_, seen| host("the app's peer", &server(seen)?.peer, "127.0.0.6"),
            ),
        ],
    },
    Case {
        from: ("client", APP),
        to: |at| (&at.plain, PORT),
        promises: &[(
            "outbound: a connection to a pod without a sidecar goes through the sidecar",
            |at, seen| is(seen, OUT, &socket(&at.plain, PORT)),
        )],
    },
    Case {
        from: ("client", APP),
        to: |at| (&at.plain, EXCLUDED_OUT),
        promises: &[(
            "outbound: a port of excludeOutboundPorts is dialed directly",
            |_, seen| direct(seen),
        )],
    },
    Case {
        from: ("client", APP),
        to: |_| ("127.0.0.1", PORT),
        promises: &[("outbound: loopback is dialed directly", |_, seen| {
            direct(seen)
        })],
    },
    Case {
        from: ("client", AS_PROXY),
        to: |at| (&at.plain, PORT),
        promises: &[(
            "outbound: the sidecar's own user connects directly",
            |_, seen| direct(seen),
        )],
    },
    Case {
        from: ("plain", APP),
        to: |at| (&at.server, PORT),
        promises: &[
            (
                "inbound: a connection from a pod without a sidecar goes through the server's sidecar",
                |at, seen| {
                    without(seen, OUT)?;
                    is(seen, IN, &socket(&at.server, PORT))
                },
            ),
            (
                "inbound: the sidecar's peer is the client's socket",
                |_, seen| is(seen, IN_PEER, &seen.own),
            ),
        ],
    },
    Case {
        from: ("plain", APP),
        to: |at| (&at.server, EXCLUDED_IN),
        promises: &[(
            "inbound: a port of excludeInboundPorts is reached directly",
            |_, seen| direct(seen),
        )],
    },
    Case {
        from: ("plain", APP),
        to: |at| (&at.server, HEALTH),
        promises: &[(
            "inbound: the sidecar's health port is reached directly",
            |_, seen| {
                without(seen, IN)?;
                equal("the answer", seen.body.trim(), "ready")
            },
        )],
    },
    Case {
        from: ("down", APP),
        to: |at| (&at.plain, PORT),
        promises: &[(
            "outbound: while the sidecar does not listen connections are refused",
            |_, seen| refused(seen),
        )],
    },
    Case {
        from: ("plain", APP),
        to: |at| (&at.down, PORT),
        promises: &[(
            "inbound: while the sidecar does not listen connections are refused",
            |_, seen| refused(seen),
        )],
    },
];

/// How many promises there are.
pub fn count() -> usize {
    CASES.iter().map(|case| case.promises.len()).sum()
}

fn socket(address: &str, port: u16) -> String {
    format!("{address}:{port}")
}

/// It was answered.
fn answered(seen: &CaseAnswer) -> Result<(), String> {
    match &seen.error {
        Some(error) => Err(format!("no answer: {error}")),
        None if seen.status != 200 => Err(format!("HTTP status {}", seen.status)),
        None => Ok(()),
    }
}

fn equal(what: &str, seen: &str, wanted: &str) -> Result<String, String> {
    match seen == wanted {
        true => Ok(seen.to_owned()),
        false => Err(format!("{what} is {seen:?} and not {wanted:?}")),
    }
}

/// The address without its port.
fn host(what: &str, seen: &str, wanted: &str) -> Result<String, String> {
    let address = seen.rsplit_once(':').map_or(seen, |(address, _)| address);
    equal(what, address, wanted).map(|_| seen.to_owned())
}

/// A sidecar's header says this.
fn is(seen: &CaseAnswer, header: &str, wanted: &str) -> Result<String, String> {
    answered(seen)?;
    let sidecar = if header.starts_with(OUT) {
        "outbound"
    } else {
        "inbound"
    };
    let value = seen.headers.get(header);
    let value = value.ok_or_else(|| format!("the connection went past the {sidecar} sidecar"))?;
    let what = if header.ends_with("-peer") {
        "its peer"
    } else {
        "its original destination"
    };
    equal(what, value, wanted)
}

fn without(seen: &CaseAnswer, header: &str) -> Result<(), String> {
    answered(seen)?;
    match seen.headers.get(header) {
        Some(value) => Err(format!("it went through a sidecar: {header} is {value:?}")),
        None => Ok(()),
    }
}

fn server(seen: &CaseAnswer) -> Result<Server, String> {
    answered(seen)?;
    serde_json::from_str(&seen.body).map_err(|_| format!("the app's answer is {:?}", seen.body))
}

/// No sidecar was on the way: the server sees the client's own socket.
fn direct(seen: &CaseAnswer) -> Result<String, String> {
    without(seen, OUT)?;
    without(seen, IN)?;
    equal("the server's peer", &server(seen)?.peer, &seen.own)
}

fn refused(seen: &CaseAnswer) -> Result<String, String> {
    match seen.error.as_deref() {
        Some("ECONNREFUSED") => Ok("ECONNREFUSED".to_owned()),
        Some(other) => Err(format!("{other} and not ECONNREFUSED")),
        None => Err(format!("it was answered, by {:?}", seen.peer)),
    }
}

#[cfg(test)]
mod tests;
