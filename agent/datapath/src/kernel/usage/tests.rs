use super::Usage;

#[test]
fn a_problem_from_nine_tenths_on() {
    let with = |rows| Usage {
        map: "LISTENERS",
        then: "inbound connections are refused",
        cure: "restart it",
        rows,
        capacity: 65_536,
    };
    assert_eq!(with(58_982).problem(), None);
    let problem = with(58_983).problem();
    assert_eq!(
        problem.as_deref(),
        Some(
            "map LISTENERS has 58983 of 65536 rows; when it is full, inbound connections are refused: restart it"
        )
    );
}
