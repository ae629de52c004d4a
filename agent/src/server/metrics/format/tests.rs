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
