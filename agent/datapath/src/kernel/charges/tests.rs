use super::{certain, drift};

#[test]
fn a_count_that_rests_is_corrected_exactly() {
    assert_eq!(drift(5, 5, 5), 0);
    assert_eq!(drift(5, 5, 0), 5);
    assert_eq!(drift(2, 2, 5), -3);
}

#[test]
fn one_that_moves_is_corrected_by_what_is_certain() {
    // Between the two there may have been any.
    assert_eq!(drift(900, 1_000, 950), 0);
    assert_eq!(drift(900, 1_000, 700), 0);
    assert_eq!(drift(900, 1_000, 100), 544);
    assert_eq!(drift(1_000, 900, 100), 544);
    assert_eq!(drift(900, 1_000, 1_300), -44);
}

#[test]
fn what_two_looks_do_not_agree_on_stays() {
    assert_eq!(certain(5, 5), 5);
    assert_eq!(certain(-5, -5), -5);
    assert_eq!(certain(0, 5), 0);
    assert_eq!(certain(5, 6), 0);
    assert_eq!(certain(-900, 900), 0);
    assert_eq!(certain(1_000, 900), 644);
    assert_eq!(certain(-900, -1_000), -644);
}
