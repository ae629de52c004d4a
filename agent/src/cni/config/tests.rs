use super::Config;

#[test]
fn results_pass_through_unchanged() {
    let text = br#"{"cniVersion":"0.4.0","name":"n","type":"sidetrack-cni","socket":"/s",
            "prevResult": {"cniVersion":"0.4.0", "ips":[ ],"x":1e2}}"#;
    let config = Config::parse(text).unwrap();
    assert_eq!(
        config.previous().unwrap(),
        r#"{"cniVersion":"0.4.0", "ips":[ ],"x":1e2}"#
    );
}

#[test]
fn errors_name_the_cause() {
    for (text, part) in [
        ("", "\"code\":6"),
        ("[]", "\"code\":6"),
        ("{}", "\"code\":1"),
        (r#"{"cniVersion":"0.2.0"}"#, "0.2.0"),
        (r#"{"cniVersion":"9.9.9"}"#, "9.9.9"),
        (r#"{"cniVersion":7}"#, "\"code\":6"),
        (r#"{"cniVersion":"1.0.0"}"#, "names no socket"),
        (
            r#"{"cniVersion":"1.0.0","socket":"/s","timeoutSeconds":0}"#,
            "timeoutSeconds",
        ),
    ] {
        let error = Config::parse(text.as_bytes()).unwrap_err().to_json();
        assert!(error.contains(part), "{text}: {error}");
    }
}
