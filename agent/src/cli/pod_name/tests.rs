use super::{NamespaceFlag, PodName, listed};

fn known() -> Vec<String> {
    ["shop/web-0", "shop/web-1", "bank/web-0", "bank/ledger"]
        .map(str::to_owned)
        .into()
}

fn find(text: &str) -> Result<String, String> {
    let pod: PodName = text.parse()?;
    let found = pod.find(&known()).cloned();
    found.map_err(|error| error.to_string())
}

#[test]
fn names_with_and_without_a_namespace() {
    assert_eq!(find("shop/web-0"), Ok("shop/web-0".to_owned()));
    assert_eq!(find("web-1"), Ok("shop/web-1".to_owned()));
    let several = find("web-0").unwrap_err();
    assert!(
        several.contains("shop/web-0, bank/web-0; write NAMESPACE/POD"),
        "{several}"
    );
    for text in [
        "", "/", "a/", "/a", "a/b/c", "a b", "a b/c", "A/b", "a/b_c", "-n",
    ] {
        assert!(text.parse::<PodName>().is_err(), "{text:?}");
    }
}

#[test]
fn suggestions() {
    for (text, meant) in [
        ("bank/legder", "did you mean bank/ledger?"),
        ("ledgr", "did you mean bank/ledger?"),
        ("shop/ledger", "did you mean bank/ledger?"),
        ("shop/web-2", "did you mean shop/web-0 or shop/web-1"),
        ("bnak/web-0", "did you mean bank/web-0 or shop/web-0"),
        ("mysql", "; there are shop/web-0, shop/web-1"),
    ] {
        let error = find(text).unwrap_err();
        assert!(error.contains(meant), "{text}: {error}");
    }
    let name: PodName = "web".parse().unwrap();
    let error = name.find(&[]).unwrap_err().to_string();
    assert_eq!(error, "no pod web is known; there is none");
}

#[test]
fn the_flag_completes_a_name() {
    let flag = NamespaceFlag {
        namespace: Some("bank".to_owned()),
    };
    let complete = |text: &str| flag.complete(&text.parse().unwrap()).to_string();
    assert_eq!(complete("web-0"), "bank/web-0");
    assert_eq!(complete("bank/web-0"), "bank/web-0");
}

#[test]
fn long_lists_are_cut() {
    assert_eq!(listed(&["a", "b"]), "a, b");
    let many: Vec<String> = (0..20).map(|number| number.to_string()).collect();
    assert_eq!(listed(&many), "0, 1, 2, 3, 4, 5, 6, 7 and 12 more");
}
