use std::{
    collections::BTreeSet,
    path::PathBuf,
    time::{Duration, Instant},
};

use sidetrack_common::ids::{NetnsCookie, NetnsInode, PolicyId};

use super::{
    Backoff, CgroupState, EarlierFinding, Findings, IngressProgram, LinkId, LinkLoss, Part, Repair,
    RepairKind, decide,
};

const OWN: NetnsCookie = NetnsCookie::new(7);
const EARLIER: NetnsCookie = NetnsCookie::new(8);
const STRANGE: NetnsCookie = NetnsCookie::new(9);

fn pin() -> PathBuf {
    PathBuf::from("/pin")
}

fn decided(findings: Findings) -> Vec<Repair> {
    decide(findings, &BTreeSet::from([OWN]), &BTreeSet::from([EARLIER]))
}

fn damaged() -> Findings {
    Findings {
        policies: [(PolicyId::new(3), 2)].into(),
        rows: vec![(OWN, 4)],
        pods: vec![OWN, EARLIER, STRANGE],
        maps: vec![("POD_BY_NETNS", pin())],
        inbound_is_inactive: true,
        links: vec![
            (LinkId::Hook("connect4"), LinkLoss::Detached),
            (LinkId::Inbound(OWN), LinkLoss::Detached),
            (LinkId::Inbound(EARLIER), LinkLoss::Detached),
        ],
        directory: Some(pin()),
        ..Findings::default()
    }
}

#[test]
fn nothing_follows_from_what_is_whole() {
    let findings = Findings {
        pods: vec![OWN, EARLIER],
        ..Findings::default()
    };
    assert_eq!(decided(findings), []);
}

#[test]
fn rows_come_before_programs_and_lists_before_pods() {
    let expected = [
        Repair::WritePolicies([(PolicyId::new(3), 2)].into()),
        Repair::WriteRows(OWN, 4),
        Repair::RemoveRows(vec![STRANGE]),
        Repair::PinMap("POD_BY_NETNS", pin()),
        Repair::ActivateInbound,
        Repair::RestoreLink(LinkId::Hook("connect4"), LinkLoss::Detached),
        Repair::RestoreLink(LinkId::Inbound(OWN), LinkLoss::Detached),
        Repair::LockDirectory(pin()),
    ];
    assert_eq!(decided(damaged()), expected);
}

#[test]
fn hooks_stay_while_their_cgroup_is_gone_or_another_one() {
    let (before, now) = (pin(), pin());
    let moved = CgroupState::Moved {
        before: before.clone(),
        now: now.clone(),
    };
    let recreated = CgroupState::Recreated { before, now };
    for (cgroup, follows, restores) in [
        (CgroupState::Gone("it is gone".to_owned()), false, false),
        (recreated, true, false),
        (moved, true, true),
    ] {
        let repairs = decided(Findings {
            cgroup: cgroup.clone(),
            ..damaged()
        });
        let parts: Vec<Part> = repairs.iter().map(Repair::part).collect();
        let hook = Part::Link(LinkId::Hook("connect4"));
        assert_eq!(parts.contains(&Part::Cgroup), follows, "{cgroup:?}");
        assert_eq!(parts.contains(&hook), restores, "{cgroup:?}");
        assert!(parts.contains(&Part::Link(LinkId::Inbound(OWN))));
    }
}

#[test]
fn earlier_pods_are_attached_where_they_run_and_forgotten_where_nothing_does() {
    let findings = |found, has_processes| Findings {
        earlier: vec![EarlierFinding {
            cookie: EARLIER,
            inode: NetnsInode::new(1),
            found,
            has_processes,
        }],
        ..Findings::default()
    };
    let at = |cookie| findings(Some((pin(), cookie)), true);
    let attached = Repair::AttachEarlier {
        cookie: EARLIER,
        inode: NetnsInode::new(1),
        path: pin(),
    };
    assert_eq!(decided(at(Some(EARLIER))), [attached]);
    assert_eq!(decided(at(None)), []);
    let forgotten = [Repair::ForgetEarlier(EARLIER)];
    assert_eq!(
        decided(at(Some(STRANGE))),
        forgotten,
        "its inode is used again"
    );
    assert_eq!(decided(findings(None, true)), []);
    assert_eq!(decided(findings(None, false)), forgotten);
}

#[test]
fn a_failure_doubles_the_pause_until_the_longest() {
    let part = Part::InboundProgram;
    let mut backoff = Backoff::default();
    let start = Instant::now();
    let mut now = start;
    let mut pauses = Vec::new();
    for _ in 0..9 {
        assert!(backoff.is_due(part, now));
        backoff.failed(part, "why".to_owned(), now);
        let mut pause = Duration::ZERO;
        while !backoff.is_due(part, now + pause) {
            pause += Duration::from_millis(100);
        }
        pauses.push(pause.as_millis());
        now += pause;
    }
    let expected = [200, 400, 800, 1600, 3200, 6400, 10_000, 10_000, 10_000];
    assert_eq!(pauses, expected);
    let problems: Vec<_> = backoff.problems(now).collect();
    assert_eq!(problems, [(part, "why", now - start)]);
    assert!(backoff.is_due(Part::Cgroup, start), "no other waits");
    backoff.succeeded(part);
    assert!(backoff.is_empty() && backoff.is_due(part, start));
}

#[test]
fn a_failure_is_new_when_its_reason_is() {
    let mut backoff = Backoff::default();
    let now = Instant::now();
    let mut failed = |why: &str| backoff.failed(Part::Cgroup, why.to_owned(), now);
    assert!(failed("one"));
    assert!(!failed("one"));
    assert!(failed("two"));
}

#[test]
fn failures_are_forgotten_once_their_part_is_whole() {
    let link = Part::Link(LinkId::Inbound(OWN));
    let mut backoff = Backoff::default();
    let now = Instant::now();
    for part in [link, Part::Cgroup] {
        backoff.failed(part, String::new(), now);
    }
    let remaining = |backoff: &Backoff| backoff.problems(now).map(|it| it.0).collect::<Vec<_>>();
    assert_eq!(remaining(&backoff), [Part::Cgroup, link]);
    backoff.retain(&BTreeSet::from([link]), &BTreeSet::new());
    assert_eq!(remaining(&backoff), [link]);
    backoff.retain(&BTreeSet::new(), &BTreeSet::new());
    assert!(backoff.is_empty());
}

#[test]
fn every_repair_says_what_was_done_and_is_counted_by_its_kind() {
    let link = |link, loss| Repair::RestoreLink(link, loss);
    for (repair, kind, words) in [
        (
            Repair::WriteRows(OWN, 4),
            RepairKind::Row,
            "4 rows of pod a/b were missing or different",
        ),
        (
            Repair::RemoveRows(vec![STRANGE]),
            RepairKind::Row,
            "no agent enrolled the pod with cookie 9",
        ),
        (
            Repair::PinMap("POD_BY_NETNS", pin()),
            RepairKind::Pin,
            "pin /pin was gone: made it again",
        ),
        (
            Repair::LockDirectory(pin()),
            RepairKind::Pin,
            "/pin was made anew: took it again",
        ),
        (
            link(LinkId::Hook("connect4"), LinkLoss::Replaced(5)),
            RepairKind::Link,
            "hook connect4 had another program, of id 5",
        ),
        (
            link(LinkId::Hook("connect4"), LinkLoss::Unpinned(pin())),
            RepairKind::Pin,
            "pin /pin was gone",
        ),
        (
            link(LinkId::Callbacks(OWN), LinkLoss::Detached),
            RepairKind::Link,
            "pod a/b: hook sockops of its cgroup was detached",
        ),
        (
            link(
                LinkId::Ingress(OWN, IngressProgram::Forwarded, 3),
                LinkLoss::Detached,
            ),
            RepairKind::Link,
            "pod a/b: the program for forwarded packets was detached from interface 3",
        ),
        (
            link(
                LinkId::Ingress(OWN, IngressProgram::NodeCalls, 3),
                LinkLoss::Replaced(5),
            ),
            RepairKind::Link,
            "pod a/b: another program, of id 5, had replaced the one for connections of the node at interface 3",
        ),
        (
            link(LinkId::Inbound(OWN), LinkLoss::Unpinned(pin())),
            RepairKind::Pin,
            "pod a/b: pin /pin was gone",
        ),
    ] {
        let (found, text) = repair.report("a/b").expect("it is one");
        assert_eq!(found, kind, "{text}");
        assert!(text.contains(words), "{text}");
    }
    let missing = link(LinkId::Callbacks(OWN), LinkLoss::Missing);
    assert_eq!(missing.report("a/b"), None);
    assert_eq!(Repair::ForgetEarlier(EARLIER).report("a/b"), None);
}
