//! `kubectl sidetrack` against the stand-in for the API server, with agents that answer, hang, refuse or
//! write nonsense. What a real agent answers is tested in tests/kernel/cluster/kubectl.rs.

mod agents;
mod bug_report;
mod check;
mod connections;
mod connectivity;
mod doctor;
mod events;
mod fixture;
mod labeled;
mod migrate;
mod pass;
mod rights;
mod scope;
mod top;
mod trace;
mod watch;
