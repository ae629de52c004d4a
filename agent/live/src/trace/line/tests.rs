use super::{line, line_of_one_pod};
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
    assert_eq!(
        line(&event()),
        "03:04:05.678901  shop/web-0               redirect 15001  out-all                 curl[42] 1000:-  -> 10.1.0.9:80"
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
