use super::parse;

#[test]
fn releases_of_distributions() {
    assert_eq!(parse("6.18.44-fc-v669"), Some((6, 18)));
    assert_eq!(parse("6.1.0-9-cloud-amd64"), Some((6, 1)));
    assert_eq!(parse("7.0"), Some((7, 0)));
    assert_eq!(parse("unknown"), None);
}
