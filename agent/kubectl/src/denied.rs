//! What the API server says instead of an answer.

use std::fmt::{self, Display};

use anyhow::anyhow;
use kube::Error;
use sidetrack_base::api_server::chain;
use sidetrack_policy::text::printable;

/// The API server does not allow something. To ask again is no use.
#[derive(Debug)]
pub struct Denied(pub String);

impl Display for Denied {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

impl std::error::Error for Denied {}

/// What the API server says, as a sentence: kube's text has the whole answer, as a struct of Rust.
pub fn plain(error: Error) -> anyhow::Error {
    let status = match error {
        Error::Api(status) => status,
        Error::Service(cause) => return anyhow!(chain(&*cause)),
        other => return other.into(),
    };
    let said = match status.message.as_str() {
        "" => format!("the API server answers {} {}", status.code, status.reason),
        message => printable(message),
    };
    match status.code {
        401 | 403 => Denied(said).into(),
        _ => anyhow!("{}", said.trim_end()),
    }
}
