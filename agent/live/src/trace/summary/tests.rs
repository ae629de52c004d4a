use super::{Summary, missing};

#[test]
fn the_summary_says_what_is_missing() {
    let mut summary = Summary::default();
    assert_eq!(summary.text(), "0 events; none missing");
    summary.events = 1;
    summary.by_verdict.insert("redirect".to_owned(), 1);
    summary.add_lost(7);
    assert_eq!(summary.text(), "1 event: 1 redirect; 7 missing");
}

#[test]
fn a_line_counts_what_is_missing() {
    assert!(missing(1).starts_with("... 1 connection is missing here: "));
    assert!(missing(2).starts_with("... 2 connections are missing here: "));
}
