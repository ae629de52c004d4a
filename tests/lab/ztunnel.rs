//! A stand-in for ztunnel's side of ZDS: it takes what the agent sends, one message after the other, and answers as
//! the test demands.

use std::{
    fs,
    io::IoSliceMut,
    os::{fd::AsRawFd as _, unix::fs::MetadataExt as _},
    path::Path,
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use nix::{
    cmsg_space,
    sys::socket::{ControlMessageOwned, MsgFlags, recvmsg},
};
use prost::Message as _;
use sidetrack_ambient::message::{Ack, Answer, Hello, Payload, Request, Response};
use socket2::{Domain, SockAddr, Socket, Type};

/// Longer than an agent takes for anything.
const WAIT_TIMEOUT: Duration = Duration::from_secs(20);

/// A connection to an agent.
#[derive(Debug)]
pub struct Ztunnel(Socket);

impl Ztunnel {
    /// Connects and says hello.
    pub fn start(path: &Path) -> Result<Self> {
        let ztunnel = Self::connect(path)?;
        ztunnel.send(&Hello { version: 1 })?;
        Ok(ztunnel)
    }

    /// Connects, and says nothing.
    pub fn connect(path: &Path) -> Result<Self> {
        let socket = Socket::new(Domain::UNIX, Type::SEQPACKET, None)?;
        socket.set_read_timeout(Some(WAIT_TIMEOUT))?;
        let address = SockAddr::unix(path)?;
        socket.connect(&address).context("connect to the agent")?;
        Ok(Self(socket))
    }

    /// Sends a message.
    pub fn send(&self, message: &impl prost::Message) -> Result<()> {
        self.send_bytes(&message.encode_to_vec())
    }

    /// Sends any bytes.
    pub fn send_bytes(&self, bytes: &[u8]) -> Result<()> {
        self.0.send(bytes)?;
        Ok(())
    }

    /// The next request, and the inode of the descriptor that came with it; `None` at the end.
    pub fn receive(&self) -> Result<Option<(Payload, Option<u64>)>> {
        let mut bytes = [0; 2048];
        let mut space = cmsg_space!([i32; 2]);
        let mut slices = [IoSliceMut::new(&mut bytes)];
        let flags = MsgFlags::MSG_CMSG_CLOEXEC;
        let descriptor = self.0.as_raw_fd();
        let received = recvmsg::<()>(descriptor, &mut slices, Some(&mut space), flags)
            .context("no message of the agent")?;
        let mut inodes = Vec::new();
        for message in received.cmsgs()? {
            if let ControlMessageOwned::ScmRights(descriptors) = message {
                for descriptor in descriptors {
                    let file = fs::metadata(format!("/proc/self/fd/{descriptor}"));
                    nix::unistd::close(descriptor)?;
                    inodes.push(file?.ino());
                }
            }
        }
        let length = received.bytes;
        if length == 0 {
            return Ok(None);
        }
        ensure!(inodes.len() <= 1, "{} descriptors", inodes.len());
        let payload = Request::decode(&bytes[..length])?.payload;
        Ok(Some((payload.context("no payload")?, inodes.pop())))
    }

    /// Acknowledges the last request, with an error unless it is empty.
    pub fn answer(&self, error: &str) -> Result<()> {
        let error = error.to_owned();
        let answer = Some(Answer::Ack(Ack { error }));
        self.send(&Response { answer })
    }

    /// Receives a request, acknowledges it, and returns what it was.
    pub fn acknowledge(&self) -> Result<String> {
        let (payload, inode) = self.receive()?.context("the agent has closed it")?;
        self.answer("")?;
        Ok(match payload {
            Payload::Add(add) => {
                let info = add.info.context("who it is")?;
                let inode = inode.context("no namespace came with it")?;
                let (namespace, name) = (info.namespace, info.name);
                format!("add {namespace}/{name} of {} {inode}", info.service_account)
            }
            Payload::Delete(delete) => format!("delete {}", delete.uid),
            Payload::Keep(keep) => format!("keep {}", keep.uid),
            Payload::SnapshotSent(_) => "snapshot".to_owned(),
        })
    }

    /// Whether the agent has closed the connection.
    pub fn is_closed(&self) -> Result<bool> {
        match self.receive() {
            Ok(received) => Ok(received.is_none()),
            Err(error) => match error.downcast_ref::<nix::errno::Errno>() {
                Some(nix::errno::Errno::ECONNRESET) => Ok(true),
                _ => Err(error),
            },
        }
    }
}
