//! Datagrams between actors: who answers, and what both ends see.

use std::net::SocketAddr;

use anyhow::{Result, bail};
use serde::{Deserialize, Serialize};

use crate::{
    actor::Actor,
    protocol::{Identity, Request, Response},
};

/// A socket that answers every datagram.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct AnswerUdp {
    /// Whose it is.
    pub owner: Identity,
    /// What it is bound to.
    pub address: SocketAddr,
}

/// One datagram.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SendUdp {
    /// Who sends it.
    pub sender: Identity,
    /// Where it goes.
    pub destination: SocketAddr,
    /// What the socket is bound to; any address without it.
    pub source: Option<SocketAddr>,
    /// Whether the socket is connected first.
    pub connected: bool,
}

/// The answer to a datagram.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UdpAnswer {
    /// What the socket that answered is bound to.
    pub answered_by: SocketAddr,
    /// The sender, as that socket sees it.
    pub sender: SocketAddr,
    /// Where the answer came from, as the sender sees it.
    pub came_from: SocketAddr,
    /// getpeername of a connected sender.
    pub peer: Option<SocketAddr>,
}

impl Actor {
    /// Answers datagrams until the actor ends.
    pub fn answer_udp(&self, owner: &Identity, address: SocketAddr) -> Result<()> {
        let owner = owner.clone();
        match self.ask(&Request::AnswerUdp(AnswerUdp { owner, address }))? {
            Response::Done => Ok(()),
            other => bail!("unexpected answer {other:?}"),
        }
    }

    /// Sends a datagram and waits for its answer; the errno if that fails.
    pub fn send_udp(&self, send: SendUdp) -> Result<Result<UdpAnswer, i32>> {
        match self.ask(&Request::SendUdp(Box::new(send)))? {
            Response::UdpAnswered(result) => Ok(result.map(|answer| *answer)),
            other => bail!("unexpected answer {other:?}"),
        }
    }

    /// Sends datagrams, some at the same time, and waits so many milliseconds for their answers.
    pub fn send_together(
        &self,
        all: Vec<SendUdp>,
        patience_ms: u64,
    ) -> Result<Vec<Result<UdpAnswer, i32>>> {
        match self.ask(&Request::SendTogether { all, patience_ms })? {
            Response::AllUdpAnswered(results) => Ok(results),
            other => bail!("unexpected answer {other:?}"),
        }
    }
}
