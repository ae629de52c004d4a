//! What terminals show, character by character.

use std::time::{Duration, SystemTime};

use crossterm::event::{KeyCode, KeyEvent};
use ratatui::{Terminal, backend::TestBackend, buffer::Buffer, style::Color};

use super::{Theme, cut, draw, seconds_of};
use crate::{
    Connections,
    top::{Origin, PerSecond, Row, Settings, TopReport, View},
};

fn pod(name: &str, sidecar: Option<&str>, rates: Option<(f64, f64, f64)>, refused: u64) -> Row {
    Row {
        namespace: "shop".to_owned(),
        name: name.to_owned(),
        state: if sidecar.is_some() {
            "enrolled"
        } else {
            "waiting"
        }
        .to_owned(),
        reason: None,
        sidecar: sidecar.map(str::to_owned),
        waiting: Some(0),
        per_second: rates.map(
            |(outbound_redirected, inbound_redirected, refused)| PerSecond {
                outbound_redirected,
                inbound_redirected,
                refused,
                ..PerSecond::default()
            },
        ),
        connections: sidecar.map(|_| Connections {
            refused,
            untouched: 7,
            ..Connections::default()
        }),
    }
}

fn report(node: &str) -> TopReport {
    TopReport {
        node: node.to_owned(),
        version: Some("0.1.0".to_owned()),
        origin: Origin::Agent,
        no_answer: None,
        problems: vec!["pod shop/cart: something is wrong".to_owned()],
        seconds: Some(2.0),
        pods: vec![
            pod("cart", Some("down"), Some((0.0, 0.0, 4.5)), 12),
            pod("web-0", Some("up"), Some((1234.4, 0.5, 0.0)), 0),
            pod(
                "web-with-a-long-name-6d5f7b9c4-x2x8z",
                Some("unknown"),
                None,
                0,
            ),
            pod("new", None, None, 0),
        ],
    }
}

fn view(many_nodes: bool) -> View {
    let settings = Settings {
        many_nodes,
        interval: Duration::from_secs(2),
        ..Settings::default()
    };
    let noon = SystemTime::UNIX_EPOCH + Duration::from_secs(12 * 3600);
    View::new(settings, "", noon)
}

fn drawn(view: &mut View, size: (u16, u16), colors: bool) -> Buffer {
    let mut terminal = Terminal::new(TestBackend::new(size.0, size.1)).expect("a terminal");
    let theme = Theme { colors };
    terminal
        .draw(|frame| draw(frame, view, theme))
        .expect("a picture");
    terminal.backend().buffer().clone()
}

fn lines(buffer: &Buffer) -> Vec<String> {
    let area = buffer.area;
    let line = |y| {
        let cells = (0..area.width).map(|x| buffer[(x, y)].symbol());
        cells.collect::<String>().trim_end().to_owned()
    };
    (0..area.height).map(line).collect()
}

#[test]
fn eighty_columns_have_room_for_what_matters() {
    let mut view = view(false);
    view.take(report("worker-1"));
    let lines = lines(&drawn(&mut view, (80, 24), true));
    let expected = [
        "sidetrack top  worker-1  agent 0.1.0  4 pods  1 problem                 12:00:00",
        "pod shop/cart: something is wrong",
    ];
    assert_eq!(lines[..2], expected);
    assert_eq!(
        lines[2..7],
        [
            "POD                                   *SIDECAR   OUT/S   IN/S REFUSED/S  REFUSED",
            "shop/cart                             down           0      0       4.5       12",
            "shop/web-with-a-lo~me-6d5f7b9c4-x2x8z unknown        -      -         -        0",
            "shop/new                              waiting        -      -         -        -",
            "shop/web-0                            up          1234    0.5         0        0",
        ]
    );
    assert!(
        lines[23].starts_with("q quit  r rules  t trace"),
        "{}",
        lines[23]
    );
    assert_eq!(lines.len(), 24);
}

#[test]
fn fifty_columns_keep_names() {
    let mut view = view(true);
    let mut report = report("node-1");
    report.pods = vec![
        pod(
            "checkout-7d9c5b8f6d-x2x4z",
            Some("hangs"),
            Some((9.0, 0.0, 4.5)),
            12,
        ),
        pod("web-0", Some("up"), None, 0),
    ];
    view.take(report);
    let shown = lines(&drawn(&mut view, (50, 24), true));
    assert_eq!(
        shown[2..5],
        [
            "POD                            *SIDECAR  REFUSED/S",
            "shop/checkout-7d9c5b8f6d-x2x4z hangs           4.5",
            "shop/web-0                     up                -",
        ]
    );
    // The columns come back with room for them.
    for (width, heading) in [(66, " NODE "), (80, " OUT/S "), (160, " UNTOUCHED/S ")] {
        let shown = lines(&drawn(&mut view, (width, 24), true));
        assert!(shown[2].contains(heading), "{}", shown[2]);
        assert!(shown[3].starts_with("shop/checkout-7d9c5b8f6d-x2x4z "));
    }
}

#[test]
fn long_problems_wrap() {
    let mut view = view(false);
    let problem = "pod shop/cart: no sidecar listens on its outbound port, and connections are refused: see `sidetrack why shop/cart`";
    view.take(TopReport {
        problems: vec![problem.to_owned()],
        ..report("worker-1")
    });
    let shown = lines(&drawn(&mut view, (60, 24), true));
    assert_eq!(
        shown[1..3],
        [
            "pod shop/cart: no sidecar listens on its outbound port, and",
            "  connections are refused: see `sidetrack why shop/cart`",
        ]
    );
    assert!(shown[3].starts_with("POD "), "{}", shown[3]);
    // Three lines at most. The list of problems has all of it.
    let shown = lines(&drawn(&mut view, (20, 24), true));
    assert!(
        shown[3].ends_with(" ...") && shown[4].starts_with("POD "),
        "{shown:?}"
    );
    view.key(KeyEvent::from(KeyCode::Char('p')));
    let shown = lines(&drawn(&mut view, (20, 24), true)).join(" ");
    let words: Vec<&str> = shown.split_whitespace().collect();
    assert!(
        words.join(" ").contains("`sidetrack why shop/cart`"),
        "{shown}"
    );
}

#[test]
fn nodes_have_a_column_and_silent_ones_a_line() {
    let mut view = view(true);
    view.take(report("node-1"));
    view.take(report("node-2"));
    view.set_now(SystemTime::UNIX_EPOCH + Duration::from_secs(13 * 3600));
    view.take(TopReport::silent(
        "node-2",
        "no answer within 5s".to_owned(),
    ));
    view.set_now(SystemTime::UNIX_EPOCH + Duration::from_secs(13 * 3600 + 75));
    let buffer = drawn(&mut view, (80, 24), false);
    let lines = lines(&buffer);
    assert!(
        lines[0].contains("2 nodes, 1 silent  agent 0.1.0  8 pods"),
        "{}",
        lines[0]
    );
    assert_eq!(
        lines[1],
        "node-2: no agent since 13:00:00 UTC (1m15s): no answer within 5s"
    );
    assert!(lines[2].contains(" NODE "), "{}", lines[2]);
    assert!(
        lines[3].contains("node-1") && lines[4].contains("node-2"),
        "{lines:?}"
    );
    // The rates of the node that is silent are not known.
    assert!(
        lines[3].contains("4.5") && !lines[4].contains("4.5"),
        "{lines:?}"
    );
    let colored = |cell: &ratatui::buffer::Cell| cell.fg != Color::Reset || cell.bg != Color::Reset;
    assert!(!buffer.content.iter().any(colored), "no colors are wanted");
}

#[test]
fn colors_mark_what_is_down() {
    let mut view = view(false);
    view.take(report("ip-10-0-12-34.eu-west-1.compute.internal"));
    let buffer = drawn(&mut view, (80, 24), true);
    let lines = lines(&buffer);
    let head = "sidetrack top  ip-10-0-12-~ute.internal  agent 0.1.0  4 pods  1 problem 12:00:00";
    assert!(lines[0].starts_with(head), "{}", lines[0]);
    let at = lines[3].find("down").expect("its sidecar is down");
    assert_eq!(buffer[(at as u16, 3)].fg, Color::Red);
    assert_eq!(buffer[(at as u16, 6)].fg, Color::Green);
}

#[test]
fn any_size_can_be_drawn() {
    let mut view = view(true);
    view.take(report("node-1"));
    for key in [None, Some('?'), Some('q'), Some('r'), Some('q'), Some('/')] {
        if let Some(key) = key {
            view.key(KeyEvent::from(KeyCode::Char(key)));
        }
        for size in [
            (1, 1),
            (2, 3),
            (20, 2),
            (40, 5),
            (80, 24),
            (121, 40),
            (500, 200),
        ] {
            let lines = lines(&drawn(&mut view, size, true));
            assert_eq!(lines.len(), usize::from(size.1));
        }
    }
    let wide = lines(&drawn(&mut view, (121, 40), true));
    assert!(wide[2].contains("UNTOUCHED/S"), "{}", wide[2]);
}

#[test]
fn a_text_takes_the_place_of_the_list() {
    let mut view = view(false);
    view.take(report("worker-1"));
    view.key(KeyEvent::from(KeyCode::Char('r')));
    assert!(lines(&drawn(&mut view, (80, 24), true))[23].contains("the agent is asked"));
    let opened = view.opened.as_mut().expect("rules");
    opened.set_text(Ok("CONNECTIONS  RULE\n1  -A ISTIO_OUTPUT".to_owned()));
    let shown = lines(&drawn(&mut view, (80, 24), true));
    assert_eq!(shown[2], "rules of shop/cart");
    assert_eq!(shown[4], "1  -A ISTIO_OUTPUT");
    view.key(KeyEvent::from(KeyCode::Esc));
    view.key(KeyEvent::from(KeyCode::Char('?')));
    let help = lines(&drawn(&mut view, (80, 24), true));
    assert!(
        help.iter().any(|line| line.contains("UNTOUCHED ")),
        "all of it fits: {help:?}"
    );
}

#[test]
fn an_empty_list_says_why() {
    let mut view = view(false);
    let third = |view: &mut View| lines(&drawn(view, (80, 24), true))[3].clone();
    assert!(third(&mut view).contains("awaited"));
    view.take(TopReport {
        pods: Vec::new(),
        ..report("worker-1")
    });
    assert!(third(&mut view).contains("no pod is known"));
    view.take(report("worker-1"));
    for key in ['/', 'x', 'y'] {
        view.key(KeyEvent::from(KeyCode::Char(key)));
    }
    assert!(third(&mut view).contains("no pod has this name"));
}

#[test]
fn names_keep_both_ends() {
    assert_eq!(cut("shop/web-0", 10), "shop/web-0");
    assert_eq!(cut("shop/web-0", 9), "shop~eb-0");
    assert_eq!(cut("shop/web-0", 1), "~");
    assert_eq!(cut("shop/web-0", 0), "");
}

#[test]
fn spans_are_short() {
    for (milliseconds, text) in [
        (500, "500ms"),
        (1_500, "1.5s"),
        (2_000, "2s"),
        (75_000, "1m15s"),
        (3_660_000, "1h1m"),
    ] {
        assert_eq!(seconds_of(Duration::from_millis(milliseconds)), text);
    }
}
