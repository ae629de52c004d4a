use super::Filter;
use crate::api::{Process, TraceEvent, TraceLine};

fn event() -> TraceEvent {
    TraceEvent {
        time: String::new(),
        pod: "shop/web-0".to_owned(),
        direction: "outbound".to_owned(),
        verdict: "failed".to_owned(),
        source: Some("10.0.0.7:40000".to_owned()),
        destination: "10.1.0.9:80".to_owned(),
        port: Some(15001),
        rule: "sidecar-refused".to_owned(),
        errno: Some(111),
        process: Some(Process {
            pid: 42,
            name: "curl".to_owned(),
            uid: Some(1000),
            gid: Some(1000),
        }),
        socket: Some(1),
    }
}

#[test]
fn everything_named_has_to_fit() {
    let filter = |text: &str| -> Filter { serde_json::from_str(text).unwrap() };
    let line = TraceLine::Event(Box::new(event()));
    for fits in [
        "{}",
        r#"{"pod":"shop/web-0"}"#,
        r#"{"namespace":"shop"}"#,
        r#"{"verdict":"failed","direction":"outbound"}"#,
        r#"{"refused":true}"#,
        r#"{"rule":"sidecar-refused"}"#,
        r#"{"port":80}"#,
        r#"{"address":"10.1.0.0/16"}"#,
        r#"{"address":"10.0.0.7/32"}"#,
        r#"{"process":"curl"}"#,
        r#"{"process":"42"}"#,
    ] {
        assert!(filter(fits).wants(&line), "{fits}");
    }
    for other in [
        r#"{"pod":"shop/web-1"}"#,
        r#"{"namespace":"sho"}"#,
        r#"{"verdict":"refuse"}"#,
        r#"{"direction":"inbound"}"#,
        r#"{"rule":"out-all"}"#,
        r#"{"port":15001}"#,
        r#"{"address":"10.2.0.0/16"}"#,
        r#"{"process":"cur"}"#,
        r#"{"process":"43"}"#,
        r#"{"pod":"shop/web-0","port":81}"#,
    ] {
        assert!(!filter(other).wants(&line), "{other}");
        assert!(filter(other).wants(&TraceLine::Lost(1)), "{other}");
    }
}

#[test]
fn a_redirect_is_no_refusal() {
    let filter = Filter {
        refused: true,
        ..Filter::default()
    };
    let redirect = TraceEvent {
        rule: "out-all".to_owned(),
        ..event()
    };
    assert!(!filter.wants(&TraceLine::Event(Box::new(redirect))));
}
