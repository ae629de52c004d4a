use super::Inbox;
use sidetrack_reconcile::Listing;

fn listing(complete: bool) -> Listing {
    Listing {
        complete,
        ..Listing::default()
    }
}

#[test]
fn the_newest_listing_replaces_the_one_that_waits() {
    let inbox = Inbox::default();
    assert!(inbox.take().is_none());
    inbox.send_listing(listing(false));
    inbox.send_problem("unreadable".to_owned());
    let update = inbox.take().unwrap();
    assert!(update.listing.is_some(), "a problem replaces no listing");
    assert_eq!(update.problem.as_deref(), Some("unreadable"));

    inbox.send_problem("unreadable".to_owned());
    inbox.send_listing(listing(false));
    inbox.send_listing(listing(true));
    let update = inbox.take().unwrap();
    assert!(update.listing.unwrap().complete, "the newest");
    assert_eq!(update.problem, None, "the listing came after the problem");
    assert!(inbox.take().is_none(), "once");
}
