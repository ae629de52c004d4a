//! A client of the Container Runtime Interface, as kubelet is one.

use std::{path::Path, time::Duration};

use anyhow::{Context as _, Result, anyhow};
use http::uri::PathAndQuery;
use prost::Message;
use tokio::runtime::Runtime;
use tonic::{
    Request,
    client::Grpc,
    transport::{Channel, Endpoint},
};
use tonic_prost::ProstCodec;

use crate::messages as m;

/// Longer than anything here takes, the plugin's waits included.
const WAIT_TIMEOUT: Duration = Duration::from_secs(30);

/// A connection.
#[derive(Debug)]
pub struct Client {
    runtime: Runtime,
    channel: Channel,
}

impl Client {
    /// Connects to a runtime's socket.
    pub fn connect(socket: &Path) -> Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let endpoint =
            Endpoint::from_shared(format!("unix://{}", socket.display()))?.timeout(WAIT_TIMEOUT);
        let channel = runtime.block_on(endpoint.connect())?;
        Ok(Self { runtime, channel })
    }

    fn call<Q, A>(&self, method: &'static str, question: Q) -> Result<A>
    where
        Q: Message + 'static,
        A: Message + Default + 'static,
    {
        let asked = async {
            let mut grpc = Grpc::new(self.channel.clone());
            grpc.ready().await?;
            let path = PathAndQuery::from_static(method);
            let codec = ProstCodec::<Q, A>::default();
            let answer = grpc.unary(Request::new(question), path, codec).await;
            answer.map_err(|status| anyhow!("{method}: {}", status.message()))
        };
        Ok(self.runtime.block_on(asked)?.into_inner())
    }

    /// What is not ready yet, in words.
    pub fn missing(&self) -> Result<Vec<String>> {
        let answer: m::StatusAnswer =
            self.call("/runtime.v1.RuntimeService/Status", m::Empty {})?;
        let conditions = answer.status.context("a status")?.conditions;
        let missing = conditions.into_iter().filter(|condition| !condition.status);
        Ok(missing
            .map(|condition| format!("{}: {}", condition.kind, condition.message))
            .collect())
    }

    /// Whether there is an image of that name.
    pub fn has_image(&self, name: &str) -> Result<bool> {
        let image = Some(m::ImageSpec {
            image: name.to_owned(),
        });
        let answer: m::ImageStatusAnswer = self.call(
            "/runtime.v1.ImageService/ImageStatus",
            m::ImageStatus { image },
        )?;
        Ok(answer.image.is_some())
    }

    /// Makes a sandbox; its id.
    pub fn run_sandbox(&self, config: &m::SandboxConfig) -> Result<String> {
        let config = Some(config.clone());
        let answer: m::SandboxId = self.call(
            "/runtime.v1.RuntimeService/RunPodSandbox",
            m::RunSandbox { config },
        )?;
        Ok(answer.id)
    }

    /// Ends everything in a sandbox, and its network.
    pub fn stop_sandbox(&self, id: &str) -> Result<()> {
        let id = id.to_owned();
        let _: m::Empty = self.call(
            "/runtime.v1.RuntimeService/StopPodSandbox",
            m::SandboxId { id },
        )?;
        Ok(())
    }

    /// Removes a sandbox and its containers.
    pub fn remove_sandbox(&self, id: &str) -> Result<()> {
        let id = id.to_owned();
        let _: m::Empty = self.call(
            "/runtime.v1.RuntimeService/RemovePodSandbox",
            m::SandboxId { id },
        )?;
        Ok(())
    }

    /// Ids of all sandboxes.
    pub fn sandboxes(&self) -> Result<Vec<String>> {
        let answer: m::Sandboxes =
            self.call("/runtime.v1.RuntimeService/ListPodSandbox", m::Empty {})?;
        Ok(answer.items.into_iter().map(|sandbox| sandbox.id).collect())
    }

    /// A sandbox's address.
    pub fn address(&self, id: &str) -> Result<String> {
        let id = id.to_owned();
        let answer: m::SandboxStatusAnswer = self.call(
            "/runtime.v1.RuntimeService/PodSandboxStatus",
            m::SandboxId { id },
        )?;
        let network = answer.status.and_then(|status| status.network);
        Ok(network.context("a sandbox without a network")?.ip)
    }

    /// Creates and starts a container; its id.
    pub fn run_container(
        &self,
        sandbox: &str,
        config: m::ContainerConfig,
        sandbox_config: &m::SandboxConfig,
    ) -> Result<String> {
        let created: m::ContainerId = self.call(
            "/runtime.v1.RuntimeService/CreateContainer",
            m::CreateContainer {
                sandbox: sandbox.to_owned(),
                config: Some(config),
                sandbox_config: Some(sandbox_config.clone()),
            },
        )?;
        let id = created.id.clone();
        let _: m::Empty = self.call("/runtime.v1.RuntimeService/StartContainer", created)?;
        Ok(id)
    }

    /// A container's exit code; `None` as long as it runs.
    pub fn exit_code(&self, id: &str) -> Result<Option<i32>> {
        const EXITED: i32 = 2;
        let id = id.to_owned();
        let answer: m::ContainerStatusAnswer = self.call(
            "/runtime.v1.RuntimeService/ContainerStatus",
            m::ContainerId { id },
        )?;
        let status = answer.status.context("a container's status")?;
        Ok((status.state == EXITED).then_some(status.exit_code))
    }
}
