use super::{HANGS, Hanging, InProgress, now};

#[test]
fn a_connection_that_hangs_is_reported_once() {
    let thread = InProgress::default();
    assert_eq!(thread.hangs(), None, "nothing is dialed");
    let target = 1;
    let since = now();
    thread.set(Some(Hanging { target, since }));
    assert_eq!(thread.hangs(), None, "it has just begun");
    let late = Hanging {
        target,
        since: since - HANGS.as_nanos() as u64,
    };
    thread.set(Some(late));
    assert_eq!(thread.hangs(), Some(late));
    assert_eq!(thread.hangs(), None, "reported before");
}
