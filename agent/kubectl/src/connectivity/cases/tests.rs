use super::{Addresses, CASES, CaseAnswer, Check};

fn addresses() -> Addresses {
    Addresses {
        service: "10.96.0.9".to_owned(),
        server: "10.244.0.2".to_owned(),
        client: "10.244.0.3".to_owned(),
        plain: "10.244.0.4".to_owned(),
        down: "10.244.0.5".to_owned(),
    }
}

/// The check of the promise with these words.
fn check(words: &str) -> Check {
    let mut all = CASES.iter().flat_map(|case| case.promises);
    all.find(|(name, _)| name.contains(words)).unwrap().1
}

/// An answer that came from 10.244.0.3:40000.
fn answer(headers: &[(&str, &str)], body: &str) -> CaseAnswer {
    let headers = headers
        .iter()
        .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    CaseAnswer {
        peer: "10.96.0.9:80".to_owned(),
        own: "10.244.0.3:40000".to_owned(),
        status: 200,
        headers: headers.collect(),
        body: body.to_owned(),
        ..CaseAnswer::default()
    }
}

fn error(name: &str) -> CaseAnswer {
    CaseAnswer {
        error: Some(name.to_owned()),
        ..CaseAnswer::default()
    }
}

#[test]
fn a_header_with_the_wrong_destination_fails() {
    let check = check("goes through the sidecar, which gets the dialed address");
    let with = |value| {
        check(
            &addresses(),
            &answer(&[("x-sidetrack-outbound", value)], ""),
        )
    };
    assert_eq!(with("10.96.0.9:80").unwrap(), "10.96.0.9:80");
    assert!(
        with("127.0.0.1:15001")
            .unwrap_err()
            .contains("10.96.0.9:80")
    );
    let past = check(&addresses(), &answer(&[], "")).unwrap_err();
    assert!(past.contains("past the outbound sidecar"), "{past}");
    assert!(
        check(&addresses(), &error("ETIMEDOUT"))
            .unwrap_err()
            .contains("ETIMEDOUT")
    );
    let unavailable = CaseAnswer {
        status: 503,
        ..answer(&[], "")
    };
    assert!(
        check(&addresses(), &unavailable)
            .unwrap_err()
            .contains("503")
    );
}

#[test]
fn direct_means_the_callers_own_socket_and_no_sidecar() {
    let check = check("excludeOutboundPorts");
    let own = r#"{"peer": "10.244.0.3:40000"}"#;
    assert!(check(&addresses(), &answer(&[], own)).is_ok());
    let other = r#"{"peer": "10.244.0.3:40001"}"#;
    assert!(check(&addresses(), &answer(&[], other)).is_err());
    for header in ["x-sidetrack-outbound", "x-sidetrack-inbound"] {
        assert!(check(&addresses(), &answer(&[(header, "1")], own)).is_err());
    }
    assert!(check(&addresses(), &answer(&[], "ready")).is_err());
}

#[test]
fn only_a_refusal_is_a_refusal() {
    let check = check("outbound: while the sidecar does not listen");
    assert!(check(&addresses(), &error("ECONNREFUSED")).is_ok());
    assert!(check(&addresses(), &error("ETIMEDOUT")).is_err());
    assert!(
        check(&addresses(), &answer(&[], "")).is_err(),
        "it went past the sidecar"
    );
}

#[test]
fn names_are_those_of_the_app() {
    let peer = check("getpeername");
    assert!(peer(&addresses(), &answer(&[], "")).is_ok());
    let redirected = CaseAnswer {
        peer: "127.0.0.1:15001".to_owned(),
        ..answer(&[], "")
    };
    assert!(peer(&addresses(), &redirected).is_err());
    let own = check("getsockname");
    assert!(own(&addresses(), &answer(&[], "")).is_ok());
    let redirected = CaseAnswer {
        own: "127.0.0.1:40000".to_owned(),
        ..answer(&[], "")
    };
    assert!(own(&addresses(), &redirected).is_err());
}
