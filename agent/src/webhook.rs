//! The mutating webhook as a server: HTTPS, certificates. What it answers is
//! [`sidetrack_policy::webhook`].

pub mod body;
pub mod readers;
pub mod run;
pub mod serve;
pub mod tls;
