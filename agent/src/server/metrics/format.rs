//! The two text formats. OpenMetrics is what Prometheus asks for; the older format is for everyone who
//! asks for nothing, such as people and simple collectors.

use std::fmt;

use axum::http::HeaderValue;
use prometheus_client::{
    encoding::{prometheus_text, text},
    registry::Registry,
};

/// A text format of the metrics page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// OpenMetrics 1.0.
    OpenMetrics,
    /// Prometheus 0.0.4.
    Prometheus,
}

impl Format {
    /// What a client takes, by its Accept headers.
    pub fn accepted<'a>(headers: impl IntoIterator<Item = &'a HeaderValue>) -> Self {
        let texts = headers.into_iter().filter_map(|value| value.to_str().ok());
        let mut types = texts.flat_map(|text| text.split(','));
        if types.any(|it| it.trim().starts_with("application/openmetrics-text")) {
            Self::OpenMetrics
        } else {
            Self::Prometheus
        }
    }

    /// Its media type.
    #[must_use]
    pub const fn content_type(self) -> &'static str {
        match self {
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Self::Prometheus => prometheus_text::CONTENT_TYPE,
        }
    }

    pub(super) fn encode(self, registry: &Registry) -> Result<String, fmt::Error> {
        let mut text = String::new();
        match self {
            Self::OpenMetrics => text::encode(&mut text, registry)?,
            Self::Prometheus => prometheus_text::encode(&mut text, registry)?,
        }
        Ok(text)
    }
}

#[cfg(test)]
mod tests;
