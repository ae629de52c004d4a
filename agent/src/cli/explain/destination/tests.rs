use super::Destination;

#[test]
fn forms() {
    for (text, is_name) in [
        ("10.0.0.1:80", false),
        ("[fd00::1]:80", false),
        ("web.shop.svc:80", true),
        ("a_b:1", true),
    ] {
        let destination: Destination = text.parse().expect(text);
        assert_eq!(destination.to_string(), text);
        assert_eq!(
            matches!(destination, Destination::Name { .. }),
            is_name,
            "{text}"
        );
    }
    let long = format!("{}:80", "a".repeat(254));
    for text in [
        "",
        ":",
        "web",
        "web:",
        ":80",
        "web:http",
        "web:65536",
        "10.0.0:80",
        "we b:80",
        &long,
    ] {
        let error = text.parse::<Destination>().unwrap_err();
        assert!(error.contains("IP:PORT"), "{text:?}: {error}");
    }
    let error = "fd00::1:80".parse::<Destination>().unwrap_err();
    assert!(error.contains("write [fd00::1]:80"), "{error}");
}

#[test]
fn names_are_resolved() {
    let resolve = |text: &str| text.parse::<Destination>().unwrap().resolve();
    let local = resolve("localhost:80").unwrap();
    assert!(local.address.ip().is_loopback() && local.address.port() == 80);
    assert_eq!(local.of_name[0], local.address.ip());
    // Reserved for names that do not exist (RFC 6761).
    let error = resolve("nowhere.invalid:80").unwrap_err();
    assert!(
        format!("{error:#}").contains("nowhere.invalid"),
        "{error:#}"
    );
}
