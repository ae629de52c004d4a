use super::Summary;

#[test]
fn the_summary_says_what_is_missing() {
    let mut summary = Summary::default();
    assert_eq!(summary.text(), "0 events; none missing");
    summary.events = 1;
    summary.by_verdict.insert("redirect".to_owned(), 1);
    summary.add_lost(7);
    assert_eq!(summary.text(), "1 events: 1 redirect; 7 missing");
}
