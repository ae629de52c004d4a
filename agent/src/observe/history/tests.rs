use std::{collections::HashMap, fs};

use sidetrack_live::history::{Entry, Kind};

use super::{History, Log, MAX_ENTRIES, file, namespace_of, path, read};

fn entry(number: usize, pod: Option<&str>, text: &str) -> Entry {
    Entry {
        time: format!(
            "2026-11-23T12:00:{:02}.{:03}Z",
            number / 1000,
            number % 1000
        ),
        first: None,
        count: 1,
        kind: Kind::Repaired,
        pod: pod.map(str::to_owned),
        text: text.to_owned(),
    }
}

#[test]
fn what_is_said_again_counts() {
    let mut log = Log::default();
    log.add(entry(1, Some("shop/web-0"), "same"));
    log.add(entry(2, Some("shop/web-1"), "same"));
    log.add(entry(3, Some("shop/web-0"), "same"));
    log.add(entry(4, Some("shop/web-0"), "same"));
    assert_eq!(log.entries.len(), 2);
    let last = log.entries.last().expect("an entry");
    assert_eq!(last.count, 3);
    assert_eq!(last.time, entry(4, None, "").time);
    assert_eq!(last.first.as_ref(), Some(&entry(1, None, "").time));
    // Something else in between: again is not still.
    log.add(entry(5, Some("shop/web-0"), "other"));
    log.add(entry(6, Some("shop/web-0"), "same"));
    assert_eq!(log.entries.len(), 4);
}

#[test]
fn a_restless_pod_pushes_out_its_own() {
    let mut log = Log::default();
    log.add(entry(0, None, "of the node"));
    log.add(entry(1, Some("bank/ledger"), "quiet"));
    for number in 0..20 {
        log.add(entry(number, Some("shop/quiet"), &format!("{number}")));
    }
    for number in 0..5 * MAX_ENTRIES {
        log.add(entry(number, Some("shop/restless"), &format!("{number}")));
    }
    assert_eq!(log.entries.len(), MAX_ENTRIES);
    let count = |pod| {
        let of_pod = log.entries.iter().filter(|it| it.pod.as_deref() == pod);
        of_pod.count()
    };
    assert_eq!(count(None), 1);
    assert_eq!(count(Some("bank/ledger")), 1);
    assert_eq!(count(Some("shop/quiet")), 20);
    let last = format!("{}", 5 * MAX_ENTRIES - 1);
    assert_eq!(log.entries.last().map(|it| &it.text), Some(&last));
}

#[test]
fn many_pods_of_a_namespace_push_out_their_own() {
    let mut log = Log::default();
    for number in 0..400 {
        log.add(entry(number, Some("bank/ledger"), &format!("{number}")));
    }
    for number in 0..5 * MAX_ENTRIES {
        log.add(entry(number, Some(&format!("shop/pod-{number}")), "came"));
    }
    let mut counts: HashMap<String, usize> = HashMap::new();
    for entry in &log.entries {
        *counts.entry(namespace_of(entry).to_owned()).or_default() += 1;
    }
    assert_eq!(counts["bank"], 400);
    assert_eq!(counts["shop"], MAX_ENTRIES - 400);
}

#[test]
fn the_next_agent_reads_the_file() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = path(&dir.path().join("sidetrack.sock"));
    assert_eq!(read(&path).expect("no file"), None);
    let entries = [entry(1, Some("shop/web-0"), "one"), entry(2, None, "two")];
    fs::write(&path, file::content(&entries)).expect("write");
    assert_eq!(History::open(path.clone()).entries(), entries);
    assert_eq!(History::open(path).last(1), entries[1..]);
}

#[test]
fn what_is_no_list_of_events_is_refused() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("events.json");
    for text in [
        "",
        "\0\0\0",
        "[]",
        r#"{"version":1}"#,
        r#"{"version":2,"entries":[]}"#,
        r#"{"version":1,"entries":[{"time":"now"}]}"#,
    ] {
        fs::write(&path, text).expect("write");
        let problem = read(&path).expect_err(text);
        assert!(
            format!("{problem:#}").contains("is no list of events"),
            "{problem:#}"
        );
        assert!(History::open(path.clone()).entries().is_empty());
    }
    fs::remove_file(&path).expect("remove");
    nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).expect("a pipe");
    assert!(read(&path).is_err(), "a pipe");
    fs::remove_file(&path).expect("remove");
    fs::create_dir(&path).expect("a directory");
    assert!(read(&path).is_err(), "a directory");
}

#[test]
fn what_another_has_written_is_cleaned() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("events.json");
    let mut long = entry(1, Some("shop/\u{1b}[2J"), &"x".repeat(100_000));
    long.kind = Kind::Other;
    let mut untimed = entry(1, None, "no time");
    untimed.time = "yesterday".to_owned();
    let mut many = vec![long, untimed];
    many.extend((2..3 * MAX_ENTRIES).map(|number| entry(number, None, "many")));
    fs::write(&path, file::content(&many[..10])).expect("write");
    let read_back = read(&path).expect("a list").expect("a file");
    assert_eq!(read_back.len(), 9);
    assert!(read_back[0].text.len() < 400);
    assert_eq!(read_back[0].pod.as_deref(), Some("shop/\\u{1b}[2J"));
    fs::write(&path, file::content(&many)).expect("write");
    let entries = read(&path).expect("a list").expect("a file");
    assert_eq!(entries.len(), MAX_ENTRIES);
}

#[test]
fn a_repair_is_of_its_pod_if_it_has_one() {
    let dir = tempfile::tempdir().expect("a directory");
    let history = History::open(path(&dir.path().join("sidetrack.sock")));
    let pod = "shop/web-0".parse().expect("a name");
    history.add_repair(Some(&pod), "its link was detached");
    history.add_repair(None, "hook connect4 was detached: attached it again");
    let pods: Vec<_> = history.entries().into_iter().map(|it| it.pod).collect();
    assert_eq!(pods, [Some("shop/web-0".to_owned()), None]);
}
