//! What is said of an API server that cannot be reached, in sentences.

use std::{error::Error, iter::successors};

use hyper_util::client::legacy;

type BoxError = Box<dyn Error + Send + Sync>;

/// An error of an HTTP client, with the server's name where a request has not reached it.
#[must_use]
pub fn name_server(server: &str, error: BoxError) -> BoxError {
    match error.downcast::<legacy::Error>() {
        // Its own text says "client error (Connect)".
        Ok(error) if error.is_connect() => {
            let cause = error.source().map_or_else(|| error.to_string(), chain);
            format!("the API server at {server} cannot be reached: {cause}").into()
        }
        Ok(error) => error,
        Err(error) => error,
    }
}

/// An error with its causes, each once.
#[must_use]
pub fn chain(error: &(dyn Error + 'static)) -> String {
    let causes = successors(Some(error), |&error| error.source());
    causes.fold(String::new(), |text, cause| {
        let cause = cause.to_string();
        match text.is_empty() {
            true => cause,
            false if text.contains(&cause) => text,
            false => format!("{text}: {cause}"),
        }
    })
}
