use super::{Columns, line_of_one_pod};
use crate::trace::{Process, TraceEvent};

fn event() -> TraceEvent {
    TraceEvent {
        time: "2026-01-02T03:04:05.678901Z".to_owned(),
        pod: "shop/web-0".to_owned(),
        direction: "outbound".to_owned(),
        verdict: "redirect".to_owned(),
        source: None,
        destination: "10.1.0.9:80".to_owned(),
        port: Some(15001),
        rule: "out-all".to_owned(),
        errno: None,
        process: Some(Process {
            pid: 42,
            name: "curl".to_owned(),
            uid: Some(1000),
            gid: None,
        }),
        socket: Some(1),
    }
}

#[test]
fn a_line_says_who_connects_where() {
    let line = |event: &TraceEvent| Columns::default().line(event);
    assert_eq!(
        line(&event()),
        "03:04:05.678901  shop/web-0                       redirect 15001  out-all                 curl[42] 1000:-  -> 10.1.0.9:80"
    );
    assert_eq!(
        line_of_one_pod(&event()),
        "03:04:05.678 redirect 15001 out-all           curl[42] -> 10.1.0.9:80 1000:-"
    );
    let inbound = TraceEvent {
        direction: "inbound".to_owned(),
        verdict: "refuse".to_owned(),
        rule: "no-listener".to_owned(),
        source: Some("10.0.0.2:40000".to_owned()),
        port: None,
        errno: Some(111),
        process: None,
        ..event()
    };
    let line = line(&inbound);
    assert!(
        line.ends_with("no-listener             10.0.0.2:40000 => 10.1.0.9:80: Connection refused"),
        "{line}"
    );
}

#[test]
fn columns_fit_names_as_deployments_make_them() {
    let named = |pod: &str| TraceEvent {
        pod: pod.to_owned(),
        ..event()
    };
    let mut columns = Columns::default();
    let verdict = columns.header().find("VERDICT");
    let line = columns.line(&named("shop/checkout-7d9c5b8f6d-x2x4z"));
    assert_eq!(line.find("redirect"), verdict);
    // A longer one moves the columns once, not for its line only.
    let long = columns.line(&named("istio-system/istio-ingressgateway-6d8f9b7c5-abcde"));
    let next = columns.line(&event());
    assert_eq!(long.find("redirect"), next.find("redirect"));
}
