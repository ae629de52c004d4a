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
