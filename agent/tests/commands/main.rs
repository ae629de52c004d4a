//! Commands that need neither an agent nor privileges, as the binary runs them.

mod arguments;
mod explain;
mod manifests;
mod output;
mod paths;
mod run;
mod shells;
mod version;
mod wrong;
