//! Messages of ztunnel's `proto/zds.proto` (Istio 1.24 to 1.27; version 1).

use prost::{Message, Oneof};

/// The only version there is.
pub const V1: i32 = 1;

/// What a ztunnel sends first.
#[derive(Clone, PartialEq, Message)]
pub struct Hello {
    /// [`V1`].
    #[prost(int32, tag = "1")]
    pub version: i32,
}

/// A request to ztunnel. It answers each with a [`Response`].
#[derive(Clone, PartialEq, Message)]
pub struct Request {
    /// What is requested.
    #[prost(oneof = "Payload", tags = "1, 2, 3, 5")]
    pub payload: Option<Payload>,
}

/// What is requested of ztunnel.
#[derive(Clone, PartialEq, Oneof)]
pub enum Payload {
    /// Serve a pod. The descriptor of its network namespace comes with the message.
    #[prost(message, tag = "1")]
    Add(Add),
    /// Stop serving a pod.
    #[prost(message, tag = "2")]
    Delete(Delete),
    /// Every pod has been named: stop serving others.
    #[prost(message, tag = "3")]
    SnapshotSent(SnapshotSent),
    /// A pod whose namespace is not at hand: if it is served, it stays. Only before [`SnapshotSent`].
    #[prost(message, tag = "5")]
    Keep(Keep),
}

/// See [`Payload::Add`].
#[derive(Clone, PartialEq, Message)]
pub struct Add {
    /// The pod's uid.
    #[prost(string, tag = "1")]
    pub uid: String,
    /// Who it is. ztunnel ends if it is missing.
    #[prost(message, tag = "2")]
    pub info: Option<Info>,
}

/// Who a pod is. ztunnel takes its identity from it.
#[derive(Clone, PartialEq, Message)]
pub struct Info {
    /// The pod's name.
    #[prost(string, tag = "1")]
    pub name: String,
    /// Its namespace.
    #[prost(string, tag = "2")]
    pub namespace: String,
    /// Its service account.
    #[prost(string, tag = "3")]
    pub service_account: String,
}

/// See [`Payload::Keep`].
#[derive(Clone, PartialEq, Message)]
pub struct Keep {
    /// The pod's uid.
    #[prost(string, tag = "1")]
    pub uid: String,
}

/// See [`Payload::Delete`].
#[derive(Clone, PartialEq, Message)]
pub struct Delete {
    /// The pod's uid.
    #[prost(string, tag = "2")]
    pub uid: String,
}

/// See [`Payload::SnapshotSent`].
#[derive(Clone, PartialEq, Message)]
pub struct SnapshotSent {}

/// ztunnel's answer to a request.
#[derive(Clone, PartialEq, Message)]
pub struct Response {
    /// Missing if the answer is of a kind that is not known here.
    #[prost(oneof = "Answer", tags = "1")]
    pub answer: Option<Answer>,
}

/// The kinds of answers.
#[derive(Clone, PartialEq, Oneof)]
pub enum Answer {
    /// The request is carried out, or why not.
    #[prost(message, tag = "1")]
    Ack(Ack),
}

/// See [`Answer::Ack`].
#[derive(Clone, PartialEq, Message)]
pub struct Ack {
    /// Empty if the request is carried out.
    #[prost(string, tag = "1")]
    pub error: String,
}
