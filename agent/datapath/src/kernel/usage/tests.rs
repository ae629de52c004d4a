use super::Limit;

#[test]
fn a_problem_from_nine_tenths_on() {
    let limit = Limit {
        map: "LISTENERS",
        then: "inbound connections are refused",
        cure: "restart it",
    };
    assert_eq!(limit.usage((58_982, 65_536)).problem(), None);
    let problem = limit.usage((58_983, 65_536)).problem();
    assert_eq!(
        problem.as_deref(),
        Some(
            "map LISTENERS has 58983 of 65536 rows; when it is full, inbound connections are refused: restart it"
        )
    );
}
