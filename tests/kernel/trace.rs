//! What operators see of single connections: the trace, the last refusals, and what became of connections that were
//! redirected, and open connections.

mod behind;
mod connections;
mod outcomes;
mod stream;
mod top;

use anyhow::{Context as _, Result};
use lab::network::Lab;
use serde_json::Value;

use crate::fixture::PodFixture;

/// The pod's row of `sidetrack pods`.
fn app(fixture: &PodFixture) -> Result<Value> {
    fixture.agent.places.pod("test/app")?.context("the pod")
}

/// What a command prints for people.
fn printed(lab: &Lab, words: &[&str]) -> Result<String> {
    let output = lab.places().output(words)?;
    Ok(String::from_utf8(output.stdout)?)
}
