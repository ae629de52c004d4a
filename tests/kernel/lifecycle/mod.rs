//! Pods that come, change and go; sidecars that come and go.

mod listeners;
mod lists;
mod manifests;
mod network;
mod policy;
