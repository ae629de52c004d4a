//! A conversation with one ztunnel.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use prost::Message as _;
use tokio::{net::UnixStream, time::timeout};
use tracing::{info, warn};

use crate::{
    message::{
        Ack, Add, Answer, Delete, Hello, Info, Keep, Payload, Request, Response, SnapshotSent, V1,
    },
    packet,
    table::{LastAnswer, Netns, RETRY_INTERVAL, SessionId, Step, Table, Workload},
};

/// How long ztunnel may take for hello and for each acknowledgement: istio-cni's limit as well.
pub const ACK_TIMEOUT: Duration = Duration::from_secs(5);
/// Characters of ztunnel's errors that are kept.
const MAX_ERROR: usize = 300;

/// Talks to a ztunnel until it goes away. Returns why, `Ok` if it closed the connection.
pub async fn run(stream: UnixStream, table: &Table) -> Result<()> {
    let hello = timeout(ACK_TIMEOUT, packet::receive(&stream)).await;
    let hello = hello
        .with_context(|| format!("no hello within {} s", ACK_TIMEOUT.as_secs()))?
        .context("read its hello")?;
    let Some(hello) = hello else {
        // Someone who looks whether anyone listens here.
        return Ok(());
    };
    let hello = Hello::decode(hello.as_slice()).context("its hello is not of ZDS")?;
    if hello.version != V1 {
        bail!(
            "it speaks version {} of ZDS, this agent speaks {V1}: update sidetrack",
            hello.version
        );
    }
    let session = Session {
        stream,
        table,
        id: table.open_session(),
    };
    info!(session = session.id, "a ztunnel has connected");
    session.converse().await
}

struct Session<'a> {
    stream: UnixStream,
    table: &'a Table,
    id: SessionId,
}

impl Drop for Session<'_> {
    fn drop(&mut self) {
        self.table.close_session(self.id);
    }
}

impl Session<'_> {
    async fn converse(&self) -> Result<()> {
        let mut changes = self.table.subscribe();
        loop {
            changes.mark_unchanged();
            match self.table.next_step(self.id, Instant::now()) {
                Step::Add {
                    uid,
                    workload,
                    netns,
                } => self.add(&uid, workload, &netns).await?,
                Step::Keep(uid) => {
                    self.accepted(Payload::Keep(Keep { uid: uid.clone() }))
                        .await?;
                    self.table.answered(self.id, &uid, LastAnswer::Keeps);
                }
                Step::Delete(uid) => {
                    self.accepted(Payload::Delete(Delete { uid: uid.clone() }))
                        .await?;
                    self.table.deleted(self.id, &uid);
                }
                Step::SnapshotSent => {
                    self.accepted(Payload::SnapshotSent(SnapshotSent {}))
                        .await?;
                    self.table.snapshot_sent(self.id);
                }
                Step::Wait(retry_at) => {
                    tokio::select! {
                        received = packet::receive(&self.stream) => {
                            return match received.context("read from it")? {
                                None => Ok(()),
                                Some(_) => bail!("it sent a message that no request asked for"),
                            };
                        }
                        // The table outlives its sessions.
                        _ = changes.changed() => {}
                        () = until(retry_at) => {}
                    }
                }
            }
        }
    }

    async fn add(&self, uid: &str, workload: Workload, netns: &Netns) -> Result<()> {
        let pod = workload.pod();
        let info = Info {
            name: workload.name,
            namespace: workload.namespace,
            service_account: workload.service_account,
        };
        let add = Payload::Add(Add {
            uid: uid.to_owned(),
            info: Some(info),
        });
        let inode = netns.inode;
        let answer = match self.request(add, Some(netns)).await? {
            Ok(()) => LastAnswer::Serves(inode),
            Err(error) => {
                warn!(%pod, "ztunnel cannot serve it, and is asked again: {error}");
                let retry_at = Instant::now() + RETRY_INTERVAL;
                LastAnswer::Refused {
                    inode,
                    error,
                    retry_at,
                }
            }
        };
        self.table.answered(self.id, uid, answer);
        Ok(())
    }

    /// Sends a request that ztunnel has no reason to refuse.
    async fn accepted(&self, payload: Payload) -> Result<()> {
        match self.request(payload, None).await? {
            Ok(()) => Ok(()),
            Err(error) => bail!("it answered with an error: {error}"),
        }
    }

    /// Sends a request and waits for its acknowledgement, which may be an error.
    async fn request(&self, payload: Payload, netns: Option<&Netns>) -> Result<Result<(), String>> {
        let request = Request {
            payload: Some(payload),
        };
        let bytes = request.encode_to_vec();
        let exchange = async {
            let descriptor = netns.map(|netns| netns.open.as_fd());
            packet::send(&self.stream, &bytes, descriptor).await?;
            packet::receive(&self.stream).await
        };
        let answer = timeout(ACK_TIMEOUT, exchange).await.with_context(|| {
            format!(
                "it has not acknowledged a message within {} s",
                ACK_TIMEOUT.as_secs()
            )
        })?;
        let Some(answer) = answer.context("exchange a message with it")? else {
            bail!("it closed the connection instead of acknowledging a message");
        };
        match Response::decode(answer.as_slice())
            .context("its answer is not of ZDS")?
            .answer
        {
            Some(Answer::Ack(Ack { error })) if error.is_empty() => Ok(Ok(())),
            Some(Answer::Ack(Ack { error })) => Ok(Err(shown(&error))),
            None => bail!("its answer is of an unknown kind"),
        }
    }
}

/// Text of a peer as one line of limited length.
fn shown(error: &str) -> String {
    let printable = |c: char| if c.is_control() { ' ' } else { c };
    error.chars().take(MAX_ERROR).map(printable).collect()
}

async fn until(time: Option<Instant>) {
    match time {
        Some(time) => tokio::time::sleep_until(time.into()).await,
        None => std::future::pending().await,
    }
}
