//! Liveness and readiness for kubelet, on the node's 127.0.0.1. Only what runs in the node's network reaches it, and no
//! container runtime has to start a process for an answer: on a busy node that takes longer than a probe may.

use std::{
    net::{Ipv4Addr, TcpListener as StdListener},
    path::Path,
    sync::Arc,
};

use anyhow::{Context as _, Result};
use axum::Router;
use tokio::{net::TcpListener, task::JoinHandle};

use crate::observe::status::Status;
use crate::server::metrics_http;
use sidetrack_base::http::{Limits, serve_router};
use sidetrack_datapath::netns::run_on_node;

const LIMITS: Limits = Limits::of_probes("probe port");

/// A port on the node's 127.0.0.1.
#[derive(Debug)]
pub struct ProbePort(Arc<TcpListener>);

impl ProbePort {
    /// Opens it in the node's network namespace.
    ///
    /// # Errors
    /// If the namespace cannot be entered, or the port is in use.
    pub fn bind(node: &Path, port: u16) -> Result<Self> {
        let listen = || StdListener::bind((Ipv4Addr::LOCALHOST, port));
        let entered = run_on_node(node, listen);
        let listener = entered.with_context(|| format!("enter {}", node.display()))?;
        let listener = listener.with_context(|| {
            format!(
                "listen on 127.0.0.1:{port} of the node for kubelet's probes; if another agent of this node or another program has it, pass another port to --probe-port"
            )
        })?;
        listener.set_nonblocking(true)?;
        Ok(Self(Arc::new(TcpListener::from_std(listener)?)))
    }

    /// Answers that the agent is starting, until the task is aborted.
    pub fn answer_start(&self) -> JoinHandle<()> {
        self.answer(metrics_http::starting())
    }

    /// Answers until the process ends.
    pub fn answer_probes(&self, status: Arc<Status>) {
        self.answer(metrics_http::health(status));
    }

    fn answer(&self, router: Router) -> JoinHandle<()> {
        tokio::spawn(serve_router(Arc::clone(&self.0), LIMITS, router))
    }
}
