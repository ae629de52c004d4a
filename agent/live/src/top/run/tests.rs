use tokio::sync::mpsc;

use super::{Outlet, Traced};
use crate::trace::TraceLine;

#[test]
fn what_has_no_room_is_counted_where_it_is_missing() {
    let (out, mut lines) = mpsc::channel(2);
    let mut outlet = Outlet::new(out);
    let mut lost = || match lines.try_recv() {
        Ok(Traced::Line(TraceLine::Lost(count))) => count,
        other => panic!("{other:?}"),
    };
    for count in [10, 20, 30, 40] {
        outlet.line(TraceLine::Lost(count));
    }
    assert_eq!([lost(), lost()], [10, 20]);
    outlet.line(TraceLine::Lost(50));
    assert_eq!([lost(), lost()], [70, 50]);
}
