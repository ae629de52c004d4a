use std::fs::File;

use super::*;

fn workload(inode: Option<u64>) -> Workload {
    Workload {
        name: "web".to_owned(),
        namespace: "shop".to_owned(),
        service_account: "default".to_owned(),
        netns: inode.map(|inode| Netns {
            inode,
            open: Arc::new(File::open("/dev/null").expect("a descriptor")),
        }),
    }
}

fn table(workloads: &[(&str, Option<u64>)]) -> Table {
    let table = Table::default();
    set(&table, workloads);
    table
}

fn set(table: &Table, workloads: &[(&str, Option<u64>)]) {
    let named = workloads
        .iter()
        .map(|(uid, inode)| ((*uid).to_owned(), workload(*inode)));
    table.set(named.collect());
}

/// The next step, as a word and the pod.
fn step(table: &Table, id: SessionId) -> String {
    match table.next_step(id, Instant::now()) {
        Step::Add { uid, netns, .. } => format!("add {uid} {}", netns.inode),
        Step::Keep(uid) => format!("keep {uid}"),
        Step::Delete(uid) => format!("delete {uid}"),
        Step::SnapshotSent => "snapshot".to_owned(),
        Step::Wait(None) => "wait".to_owned(),
        Step::Wait(Some(_)) => "wait to ask again".to_owned(),
    }
}

fn refused(inode: u64, retry_at: Instant) -> LastAnswer {
    let error = "no".to_owned();
    LastAnswer::Refused {
        inode,
        error,
        retry_at,
    }
}

#[test]
fn nothing_is_sent_before_the_pods_are_known() {
    let table = Table::default();
    let id = table.open_session();
    assert_eq!(step(&table, id), "wait");
    assert_eq!(table.served("a"), Served::Waiting);
    set(&table, &[]);
    assert_eq!(step(&table, id), "snapshot");
}

#[test]
fn a_snapshot_names_every_pod_first() {
    let table = table(&[("a", Some(7)), ("b", None)]);
    let id = table.open_session();
    assert_eq!(step(&table, id), "add a 7");
    table.answered(id, "a", LastAnswer::Serves(7));
    assert_eq!(step(&table, id), "keep b");
    table.answered(id, "b", LastAnswer::Keeps);
    assert_eq!(step(&table, id), "snapshot");
    table.snapshot_sent(id);
    assert_eq!(step(&table, id), "wait");
    set(&table, &[("a", Some(7)), ("b", Some(8))]);
    assert_eq!(step(&table, id), "add b 8");
}

#[test]
fn a_kept_pod_that_ends_is_deleted() {
    let table = table(&[("a", None)]);
    let id = table.open_session();
    table.answered(id, "a", LastAnswer::Keeps);
    table.snapshot_sent(id);
    assert_eq!(step(&table, id), "wait");
    set(&table, &[]);
    assert_eq!(step(&table, id), "delete a");
}

#[test]
fn a_pod_is_never_kept_after_the_snapshot() {
    let table = table(&[]);
    let id = table.open_session();
    table.snapshot_sent(id);
    set(&table, &[("a", None)]);
    assert_eq!(step(&table, id), "wait");
}

#[test]
fn a_pod_that_ends_is_deleted_everywhere_and_a_new_one_is_sent_to_the_newest() {
    let table = table(&[("a", Some(7))]);
    let (old, new) = (table.open_session(), table.open_session());
    for id in [old, new] {
        table.answered(id, "a", LastAnswer::Serves(7));
        table.snapshot_sent(id);
    }
    set(&table, &[("b", Some(8))]);
    assert_eq!(step(&table, old), "delete a");
    assert_eq!(step(&table, new), "delete a");
    table.deleted(old, "a");
    table.deleted(new, "a");
    assert_eq!(step(&table, old), "wait");
    assert_eq!(step(&table, new), "add b 8");
    table.close_session(new);
    assert_eq!(
        step(&table, old),
        "add b 8",
        "the older one is the newest now"
    );
}

#[test]
fn a_pod_of_another_namespace_is_sent_again() {
    let table = table(&[("a", Some(7))]);
    let id = table.open_session();
    table.answered(id, "a", LastAnswer::Serves(7));
    table.snapshot_sent(id);
    set(&table, &[("a", Some(9))]);
    assert_eq!(table.served("a"), Served::Waiting);
    assert_eq!(step(&table, id), "add a 9");
}

#[test]
fn a_refused_pod_is_sent_again_later() {
    let table = table(&[("a", Some(7))]);
    let id = table.open_session();
    let now = Instant::now();
    table.answered(id, "a", refused(7, now + Duration::from_secs(60)));
    assert_eq!(
        step(&table, id),
        "snapshot",
        "the others do not wait for it"
    );
    table.snapshot_sent(id);
    assert_eq!(step(&table, id), "wait to ask again");
    assert_eq!(table.served("a"), Served::Refused("no".to_owned()));
    table.answered(id, "a", refused(7, now));
    assert_eq!(step(&table, id), "add a 7");
}

#[test]
fn whether_a_pod_is_served_follows_the_sessions() {
    let table = table(&[("a", Some(7))]);
    assert_eq!(table.served("a"), Served::NoZtunnel);
    assert!(table.problem().is_some_and(|it| it.contains("1 here")));
    assert_eq!(table.served("b"), Served::NotListed);
    let (old, new) = (table.open_session(), table.open_session());
    assert_eq!(table.served("a"), Served::Waiting);
    table.answered(old, "a", LastAnswer::Serves(7));
    table.answered(
        new,
        "a",
        refused(7, Instant::now() + Duration::from_secs(60)),
    );
    assert_eq!(table.served("a"), Served::Yes, "one of them serves it");
    assert_eq!(table.problem(), None);
    table.close_session(old);
    assert_eq!(table.served("a"), Served::Refused("no".to_owned()));
    assert!(table.problem().is_some_and(|it| it.contains("shop/web")));
    table.close_session(new);
    assert_eq!(table.served("a"), Served::NoZtunnel);
}
