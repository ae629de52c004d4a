use super::{LOGGED, Problem};

#[test]
fn each_way_to_fail_is_logged_once() {
    let mut problem = None;
    for text in ["cut", "refused", "no answer", "refused", "no answer", "cut"] {
        Problem::change(&mut problem, text.to_owned(), 0);
        assert_eq!(problem.as_ref().map(Problem::text), Some(text));
    }
    assert_eq!(problem.unwrap().logged, ["cut", "refused", "no answer"]);
}

#[test]
fn an_outage_has_a_bounded_number_of_lines() {
    let mut problem = None;
    for number in 0..100 {
        Problem::change(&mut problem, format!("attempt {number}"), 401);
        assert!(problem.as_ref().is_some_and(Problem::is_refused));
    }
    let problem = problem.unwrap();
    assert_eq!(problem.logged.len(), LOGGED);
    assert_eq!(problem.text(), "attempt 99");
}
