//! The two text formats. OpenMetrics is what Prometheus asks for; the older format is for everyone who
//! asks for nothing, such as people and simple collectors.

use axum::http::HeaderValue;

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
            Self::Prometheus => "text/plain; version=0.0.4; charset=utf-8",
        }
    }

    /// The page in this format, from the one in OpenMetrics.
    pub(super) fn of_openmetrics(self, page: String) -> String {
        match self {
            Self::OpenMetrics => page,
            Self::Prometheus => prometheus(&page),
        }
    }
}

/// Values are the same in both. In the older format the descriptions name a counter with its suffix, and
/// there are neither units, nor the type info, nor an end mark.
fn prometheus(page: &str) -> String {
    let kinds = page.lines().filter_map(|line| {
        let (name, kind) = line.strip_prefix("# TYPE ")?.split_once(' ')?;
        Some((name, kind))
    });
    let suffixed = |name: &str| {
        let kind = kinds.clone().find(|(of, _)| *of == name);
        match kind.map(|(_, kind)| kind) {
            Some("counter") => format!("{name}_total"),
            Some("info") => format!("{name}_info"),
            _ => name.to_owned(),
        }
    };
    let mut text = String::with_capacity(page.len());
    for line in page.lines() {
        let mut words = line.splitn(4, ' ');
        match (words.next(), words.next(), words.next(), words.next()) {
            (Some("#"), Some("HELP"), Some(name), Some(help)) => {
                text += &format!("# HELP {} {help}\n", suffixed(name));
            }
            (Some("#"), Some("TYPE"), Some(name), Some(kind)) => {
                let kind = if kind == "info" { "gauge" } else { kind };
                text += &format!("# TYPE {} {kind}\n", suffixed(name));
            }
            (Some("#"), ..) => {}
            _ => {
                text += line;
                text.push('\n');
            }
        }
    }
    text
}

#[cfg(test)]
mod tests;
