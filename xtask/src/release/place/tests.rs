use super::{VERSION, check_tag};

#[test]
fn only_the_tag_of_the_version_is_accepted() {
    check_tag(&format!("v{VERSION}")).expect("accepted");
    for tag in [VERSION, "v0.0.0", "v", &format!("v{VERSION}-rc.1")] {
        let error = check_tag(tag).expect_err(tag).to_string();
        assert!(error.contains(tag) && error.contains(VERSION), "{error}");
    }
}
