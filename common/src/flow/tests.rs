use super::{Flow, Path, WINDOW};

#[test]
fn a_reader_that_stops_sends_the_rest_by_tcp() {
    let mut flow = Flow::new(false);
    let mut past = 0;
    while flow.path(16_384, 1) == Path::Sockmap {
        flow.sent += 16_384;
        past += 16_384;
    }
    assert_eq!(past, WINDOW);
}

#[test]
fn what_was_read_makes_room() {
    let mut flow = Flow::new(false);
    flow.sent = WINDOW;
    assert_eq!(flow.path(1, 1), Path::Tcp);
    flow.read = flow.read_with(0);
    assert_eq!(flow.path(1, 1), Path::Sockmap);
    assert_eq!(flow.read_with(10), WINDOW - 10);
}

#[test]
fn tcp_is_no_longer_used_when_all_has_been_read() {
    let mut flow = Flow::new(true);
    flow.read_seq = 100;
    assert_eq!(flow.path(1, 101), Path::Tcp, "a byte is unread");
    assert_eq!(flow.path(1, 100), Path::Sockmap);
    flow.sent = 5;
    assert_eq!(flow.path(1, 100), Path::Tcp, "bytes past it are unread");
}

#[test]
fn nothing_larger_than_the_window_goes_past() {
    assert_eq!(Flow::new(false).path(WINDOW as u32 + 1, 1), Path::Tcp);
}
