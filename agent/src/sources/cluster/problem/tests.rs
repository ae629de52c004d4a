use super::{LOGGED, Problem};

#[test]
fn each_way_to_fail_is_logged_once() {
    let mut problem = None;
    for text in ["cut", "refused", "no answer", "refused", "no answer", "cut"] {
        Problem::change(&mut problem, text.to_owned());
        assert_eq!(problem.as_ref().map(Problem::text), Some(text));
    }
    assert_eq!(problem.unwrap().logged, ["cut", "refused", "no answer"]);
}

#[test]
fn an_outage_has_a_bounded_number_of_lines() {
    let mut problem = None;
    for number in 0..100 {
        Problem::change(&mut problem, format!("attempt {number}"));
    }
    let problem = problem.unwrap();
    assert_eq!(problem.logged.len(), LOGGED);
    assert_eq!(problem.text(), "attempt 99");
}
