//! The kernel's facilities: bpf(2), maps, programs, links, pins, and what else the datapath stands on.

pub mod acceleration;
pub mod adoption;
pub mod attachments;
pub mod callbacks;
pub mod cgroup;
pub mod charges;
pub mod connection_counts;
pub mod datapath;
pub mod dns;
pub mod events;
pub mod foreign;
pub mod forwarding;
pub mod handshake_counts;
pub mod hooks;
pub mod inbound;
pub mod kernel_layout;
pub mod kernel_log;
pub mod layouts;
mod loaded;
pub mod maps;
pub mod memory;
pub mod netlink;
pub mod objects;
pub mod pins;
pub mod pod_links;
pub mod probe;
pub mod queues;
pub mod release;
pub mod repair;
pub mod sock_diag;
pub mod sock_records;
pub mod sys;
pub mod table;
pub mod tasks;
pub mod usage;

pub use self::datapath::Datapath;
