use super::rows_of;

#[test]
fn only_a_list_is_a_dump() {
    assert!(rows_of("[]").is_ok_and(|rows| rows.is_empty()));
    assert!(rows_of(r#"[{"key": 1, "value": 2}]"#).is_ok_and(|rows| rows.len() == 1));
    for unreadable in [
        "",
        "null",
        "{}",
        r#"{"error": "bpf obj get: No such file"}"#,
    ] {
        assert!(rows_of(unreadable).is_err(), "{unreadable:?}");
    }
}
