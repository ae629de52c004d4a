//! Keys and answers without a terminal.

use std::time::{Duration, SystemTime};

use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use super::{Ask, Opened, PodKey, Settings, Shown, View};
use crate::{
    Connections,
    top::{Origin, PerSecond, Row, TopReport},
};

fn row(name: &str, outbound: f64, refused: u64) -> Row {
    let (namespace, name) = name.split_once('/').expect("NAMESPACE/POD");
    Row {
        namespace: namespace.to_owned(),
        name: name.to_owned(),
        state: "enrolled".to_owned(),
        reason: None,
        sidecar: Some(if refused > 0 { "down" } else { "up" }.to_owned()),
        waiting: Some(0),
        per_second: Some(PerSecond {
            outbound_redirected: outbound,
            ..PerSecond::default()
        }),
        connections: Some(Connections {
            refused,
            ..Connections::default()
        }),
    }
}

fn report(node: &str, pods: Vec<Row>) -> TopReport {
    TopReport {
        node: node.to_owned(),
        version: Some("0.1.0".to_owned()),
        origin: Origin::Agent,
        no_answer: None,
        problems: Vec::new(),
        seconds: Some(2.0),
        pods,
    }
}

fn view() -> View {
    let mut view = View::new(Settings::default(), "", SystemTime::UNIX_EPOCH);
    let pods = vec![
        row("shop/web-1", 3.0, 0),
        row("bank/api", 9.0, 0),
        row("shop/web-0", 1.0, 4),
    ];
    view.take(report("node-1", pods));
    view
}

fn press(view: &mut View, code: KeyCode) -> Ask {
    view.key(KeyEvent::from(code))
}

fn typed(view: &mut View, text: &str) {
    for c in text.chars() {
        assert_eq!(press(view, KeyCode::Char(c)), Ask::Nothing);
    }
}

fn names(view: &View) -> Vec<String> {
    view.rows()
        .iter()
        .map(|shown| shown.row.full_name())
        .collect()
}

fn pod(name: &str) -> PodKey {
    PodKey {
        node: "node-1".to_owned(),
        name: name.to_owned(),
    }
}

#[test]
fn each_column_sorts() {
    let mut view = view();
    // Its sidecar is down.
    assert_eq!(names(&view), ["shop/web-0", "bank/api", "shop/web-1"]);
    let mut orders = Vec::new();
    for _ in 0..6 {
        typed(&mut view, "s");
        orders.push(names(&view)[0].clone());
    }
    let first = [
        "bank/api",   // outbound
        "bank/api",   // inbound: all the same, by name
        "shop/web-0", // refused
        "bank/api",   // untouched: all the same
        "bank/api",   // by name
        "shop/web-0", // its sidecar is down
    ];
    assert_eq!(orders, first);
    typed(&mut view, "S");
    assert_eq!(names(&view), ["bank/api", "shop/web-1", "shop/web-0"]);
}

#[test]
fn the_selected_pod_stays_selected() {
    let mut view = view();
    press(&mut view, KeyCode::Home);
    assert_eq!(
        press(&mut view, KeyCode::Enter),
        Ask::Rules(pod("shop/web-0"))
    );
    assert_eq!(press(&mut view, KeyCode::Esc), Ask::Close);
    // Sorted to the last line.
    typed(&mut view, "S");
    assert_eq!(view.fit(10), (0, Some(2)));
    assert_eq!(
        press(&mut view, KeyCode::Char('t')),
        Ask::Trace(pod("shop/web-0"))
    );
    assert_eq!(press(&mut view, KeyCode::Char('q')), Ask::Close);
    // It is gone: the first one.
    view.take(report("node-1", vec![row("bank/api", 0.0, 0)]));
    assert_eq!(
        press(&mut view, KeyCode::Char('r')),
        Ask::Rules(pod("bank/api"))
    );
    press(&mut view, KeyCode::Esc);
    view.take(report("node-1", Vec::new()));
    assert_eq!(press(&mut view, KeyCode::Char('r')), Ask::Nothing);
}

#[test]
fn the_list_scrolls_with_the_selected_pod() {
    let mut view = View::new(Settings::default(), "", SystemTime::UNIX_EPOCH);
    let pods = (0..100).map(|number| row(&format!("shop/web-{number:02}"), 0.0, 0));
    view.take(report("node-1", pods.collect()));
    assert_eq!(view.fit(20), (0, Some(0)));
    press(&mut view, KeyCode::PageDown);
    assert_eq!(view.fit(20), (1, Some(20)));
    press(&mut view, KeyCode::End);
    assert_eq!(view.fit(20), (80, Some(99)));
    // The terminal becomes larger, and smaller than anything.
    assert_eq!(view.fit(50), (50, Some(99)));
    assert_eq!(view.fit(0), (99, Some(99)));
    press(&mut view, KeyCode::Home);
    assert_eq!(view.fit(20), (0, Some(0)));
    press(&mut view, KeyCode::Up);
    assert_eq!(view.fit(20), (0, Some(0)));
}

#[test]
fn a_filter_is_typed() {
    let mut view = view();
    typed(&mut view, "/shopq");
    assert!(view.types_filter && names(&view).is_empty());
    press(&mut view, KeyCode::Backspace);
    press(&mut view, KeyCode::Enter);
    assert_eq!(names(&view), ["shop/web-0", "shop/web-1"]);
    // Keys are keys again.
    assert_eq!(press(&mut view, KeyCode::Char('q')), Ask::Quit);
    press(&mut view, KeyCode::Esc);
    assert_eq!(names(&view).len(), 3);
    view.settings.namespace = Some("bank".to_owned());
    assert_eq!(names(&view), ["bank/api"]);
}

#[test]
fn control_c_ends_it_everywhere() {
    let end = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
    let mut view = view();
    assert_eq!(view.key(end), Ask::Quit);
    for key in ["/", "?"] {
        typed(&mut view, key);
        assert_eq!(view.key(end), Ask::Quit, "{key}");
        press(&mut view, KeyCode::Esc);
    }
}

#[test]
fn a_silent_node_keeps_its_pods_without_rates() {
    let mut view = view();
    let start = SystemTime::UNIX_EPOCH;
    view.set_now(start + Duration::from_secs(60));
    view.take(TopReport::silent(
        "node-1",
        "no answer within 5s".to_owned(),
    ));
    view.set_now(start + Duration::from_secs(90));
    view.take(TopReport::silent(
        "node-1",
        "no answer within 5s".to_owned(),
    ));
    assert_eq!(view.problems(), ["no answer within 5s"]);
    let since = view.nodes["node-1"].silent_since;
    assert_eq!(since, Some(start + Duration::from_secs(60)));
    let stale = |shown: &Shown<'_>| shown.is_stale && shown.row.per_second.is_none();
    assert!(view.rows().iter().all(stale) && view.rows().len() == 3);
    view.take(report("node-1", vec![row("shop/web-0", 1.0, 0)]));
    assert!(view.nodes["node-1"].silent_since.is_none());
    view.keep_nodes(|_| false);
    assert!(view.rows().is_empty());
}

fn opened(view: &mut View) -> &mut Opened {
    view.opened.as_mut().expect("a text")
}

#[test]
fn a_text_scrolls_and_a_trace_follows_its_end() {
    let mut view = view();
    press(&mut view, KeyCode::Enter);
    let text: Vec<String> = (0..50)
        .map(|number| format!("abcdefgh line {number}\u{1b}"))
        .collect();
    opened(&mut view).set_text(Ok(text.join("\n")));
    let lines = |view: &mut View| opened(view).visible(10);
    assert_eq!(
        lines(&mut view)[0],
        "abcdefgh line 0\\u{1b}",
        "what a terminal would obey is escaped"
    );
    press(&mut view, KeyCode::PageDown);
    press(&mut view, KeyCode::Right);
    assert_eq!(lines(&mut view)[0], " line 10\\u{1b}");
    press(&mut view, KeyCode::Left);
    press(&mut view, KeyCode::End);
    assert_eq!(lines(&mut view)[0], "abcdefgh line 40\\u{1b}");
    press(&mut view, KeyCode::Esc);
    press(&mut view, KeyCode::Char('t'));
    for lost in 1..=30 {
        opened(&mut view).add_lost(lost);
    }
    assert!(lines(&mut view)[9].starts_with("... 30 "));
    press(&mut view, KeyCode::Up);
    opened(&mut view).add_lost(31);
    assert!(
        lines(&mut view)[9].starts_with("... 29 "),
        "scrolled up, it stays"
    );
    press(&mut view, KeyCode::End);
    opened(&mut view).add_lost(32);
    assert!(lines(&mut view)[9].starts_with("... 32 "));
    opened(&mut view).end("the agent has ended");
    assert_eq!(view.opened.expect("a text").state(), "the agent has ended");
}

#[test]
fn sidecars_that_hang_or_are_down_come_first() {
    let mut view = View::new(Settings::default(), "", SystemTime::UNIX_EPOCH);
    let states = ["up", "unknown", "hangs", "not yet", "down", "in"];
    let pods = states.iter().enumerate().map(|(number, state)| Row {
        sidecar: Some((*state).to_owned()),
        ..row(&format!("shop/web-{number}"), 0.0, 0)
    });
    view.take(report("node-1", pods.collect()));
    let shown = view.rows().into_iter();
    let shown: Vec<_> = shown.filter_map(|it| it.row.sidecar.as_deref()).collect();
    assert_eq!(shown, ["hangs", "down", "not yet", "in", "unknown", "up"]);
}
