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
mod tests {
    use axum::http::HeaderValue;

    use super::Format;

    #[test]
    fn clients_choose() {
        let format = |headers: &[&'static str]| {
            let headers: Vec<_> = headers
                .iter()
                .copied()
                .map(HeaderValue::from_static)
                .collect();
            Format::accepted(&headers)
        };
        // As Prometheus 2 and 3 ask.
        for header in [
            "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,text/plain;version=0.0.4;q=0.5,*/*;q=0.1",
            "text/plain;version=0.0.4;q=0.3, application/openmetrics-text;version=1.0.0;q=0.5",
        ] {
            assert_eq!(format(&[header]), Format::OpenMetrics);
        }
        assert_eq!(
            format(&["text/html", "application/openmetrics-text"]),
            Format::OpenMetrics
        );
        for header in ["*/*", "text/plain", "text/html,application/xml;q=0.9"] {
            assert_eq!(format(&[header]), Format::Prometheus);
        }
        assert_eq!(format(&[]), Format::Prometheus);
    }

    #[test]
    fn the_older_format() {
        let page = "# HELP a Text of several words\n# TYPE a counter\na_total{b=\"c d\"} 1\n\
            # HELP i Build\n# TYPE i info\ni_info{v=\"1\"} 1\n\
            # HELP t_seconds Time\n# TYPE t_seconds histogram\n# UNIT t_seconds seconds\nt_seconds_count 0\n\
            # EOF\n";
        assert_eq!(
            Format::Prometheus.of_openmetrics(page.to_owned()),
            "# HELP a_total Text of several words\n# TYPE a_total counter\na_total{b=\"c d\"} 1\n\
            # HELP i_info Build\n# TYPE i_info gauge\ni_info{v=\"1\"} 1\n\
            # HELP t_seconds Time\n# TYPE t_seconds histogram\nt_seconds_count 0\n"
        );
        assert_eq!(Format::OpenMetrics.of_openmetrics(page.to_owned()), page);
    }
}
