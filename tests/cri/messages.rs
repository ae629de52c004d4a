//! As much of the Container Runtime Interface as these tests speak. The field numbers are those of
//! `k8s.io/cri-api/pkg/apis/runtime/v1/api.proto`; written down here because every crate that
//! generates them wants protoc on the machine that builds.

use prost::Message;

#[derive(Clone, PartialEq, Message)]
pub struct Empty {}

#[derive(Clone, PartialEq, Message)]
pub struct SandboxMetadata {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(string, tag = "2")]
    pub uid: String,
    #[prost(string, tag = "3")]
    pub namespace: String,
    #[prost(uint32, tag = "4")]
    pub attempt: u32,
}

#[derive(Clone, PartialEq, Message)]
pub struct SandboxConfig {
    #[prost(message, optional, tag = "1")]
    pub metadata: Option<SandboxMetadata>,
    #[prost(string, tag = "2")]
    pub hostname: String,
    #[prost(string, tag = "3")]
    pub log_directory: String,
    #[prost(message, optional, tag = "8")]
    pub linux: Option<LinuxSandboxConfig>,
}

#[derive(Clone, PartialEq, Message)]
pub struct LinuxSandboxConfig {
    #[prost(string, tag = "1")]
    pub cgroup_parent: String,
}

#[derive(Clone, PartialEq, Message)]
pub struct RunSandbox {
    #[prost(message, optional, tag = "1")]
    pub config: Option<SandboxConfig>,
}

/// Every request that names a sandbox and no more, and the answer to [`RunSandbox`].
#[derive(Clone, PartialEq, Message)]
pub struct SandboxId {
    #[prost(string, tag = "1")]
    pub id: String,
}

#[derive(Clone, PartialEq, Message)]
pub struct Sandboxes {
    #[prost(message, repeated, tag = "1")]
    pub items: Vec<SandboxId>,
}

#[derive(Clone, PartialEq, Message)]
pub struct SandboxStatusAnswer {
    #[prost(message, optional, tag = "1")]
    pub status: Option<SandboxStatus>,
}

#[derive(Clone, PartialEq, Message)]
pub struct SandboxStatus {
    #[prost(message, optional, tag = "5")]
    pub network: Option<SandboxNetwork>,
}

#[derive(Clone, PartialEq, Message)]
pub struct SandboxNetwork {
    #[prost(string, tag = "1")]
    pub ip: String,
}

#[derive(Clone, PartialEq, Message)]
pub struct ContainerMetadata {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(uint32, tag = "2")]
    pub attempt: u32,
}

#[derive(Clone, PartialEq, Message)]
pub struct ImageSpec {
    #[prost(string, tag = "1")]
    pub image: String,
}

#[derive(Clone, PartialEq, Message)]
pub struct ContainerConfig {
    #[prost(message, optional, tag = "1")]
    pub metadata: Option<ContainerMetadata>,
    #[prost(message, optional, tag = "2")]
    pub image: Option<ImageSpec>,
    #[prost(string, repeated, tag = "3")]
    pub command: Vec<String>,
    #[prost(string, tag = "11")]
    pub log_path: String,
    #[prost(message, optional, tag = "15")]
    pub linux: Option<LinuxContainerConfig>,
}

#[derive(Clone, PartialEq, Message)]
pub struct LinuxContainerConfig {
    #[prost(message, optional, tag = "2")]
    pub security_context: Option<SecurityContext>,
}

#[derive(Clone, PartialEq, Message)]
pub struct SecurityContext {
    #[prost(message, optional, tag = "5")]
    pub run_as_user: Option<Number>,
    #[prost(message, optional, tag = "12")]
    pub run_as_group: Option<Number>,
}

#[derive(Clone, PartialEq, Message)]
pub struct Number {
    #[prost(int64, tag = "1")]
    pub value: i64,
}

#[derive(Clone, PartialEq, Message)]
pub struct CreateContainer {
    #[prost(string, tag = "1")]
    pub sandbox: String,
    #[prost(message, optional, tag = "2")]
    pub config: Option<ContainerConfig>,
    #[prost(message, optional, tag = "3")]
    pub sandbox_config: Option<SandboxConfig>,
}

/// Every request that names a container and no more, and the answer to [`CreateContainer`].
#[derive(Clone, PartialEq, Message)]
pub struct ContainerId {
    #[prost(string, tag = "1")]
    pub id: String,
}

#[derive(Clone, PartialEq, Message)]
pub struct ContainerStatusAnswer {
    #[prost(message, optional, tag = "1")]
    pub status: Option<ContainerStatus>,
}

#[derive(Clone, PartialEq, Message)]
pub struct ContainerStatus {
    /// 0 created, 1 running, 2 exited, 3 unknown.
    #[prost(int32, tag = "3")]
    pub state: i32,
    #[prost(int32, tag = "7")]
    pub exit_code: i32,
}

#[derive(Clone, PartialEq, Message)]
pub struct StatusAnswer {
    #[prost(message, optional, tag = "1")]
    pub status: Option<RuntimeStatus>,
}

#[derive(Clone, PartialEq, Message)]
pub struct RuntimeStatus {
    #[prost(message, repeated, tag = "1")]
    pub conditions: Vec<Condition>,
}

/// `RuntimeReady` and `NetworkReady`.
#[derive(Clone, PartialEq, Message)]
pub struct Condition {
    #[prost(string, tag = "1")]
    pub kind: String,
    #[prost(bool, tag = "2")]
    pub status: bool,
    #[prost(string, tag = "4")]
    pub message: String,
}

#[derive(Clone, PartialEq, Message)]
pub struct ImageStatus {
    #[prost(message, optional, tag = "1")]
    pub image: Option<ImageSpec>,
}

#[derive(Clone, PartialEq, Message)]
pub struct ImageStatusAnswer {
    #[prost(message, optional, tag = "1")]
    pub image: Option<Image>,
}

#[derive(Clone, PartialEq, Message)]
pub struct Image {
    #[prost(string, tag = "1")]
    pub id: String,
}
