//! Pods that come, change and go; sidecars that come and go.

mod late_ipv6;
mod listeners;
mod lists;
mod manifests;
mod network;
mod policy;
mod release;
mod retired_policies;
mod route_events;
mod route_tables;
