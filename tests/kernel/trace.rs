//! What operators see of single connections: the trace, the last refusals, and what became of connections that were
//! redirected, and open connections.

mod behind;
mod connections;
mod hangs;
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

/// Whether somebody traces.
fn is_traced(fixture: &PodFixture) -> Result<bool> {
    let rows = fixture.lab.places().map("TRACING")?;
    let until = &rows.first().context("its row")?["formatted"]["value"];
    Ok(until.as_u64().context("a number")? != 0)
}

/// What a command prints for people.
fn printed(lab: &Lab, words: &[&str]) -> Result<String> {
    let output = lab.places().output(words)?;
    Ok(String::from_utf8(output.stdout)?)
}
