use super::{VERSION, notes_in, section};

const TEXT: &str = "# Changelog\n\n## [Unreleased]\n\nnew\n\n## [0.2.0] - 2027-01-01\n\n### Added\n\n- a\n\n## [0.1.0]\n\nold\n";

#[test]
fn a_version_has_its_own_section() {
    assert_eq!(
        section(TEXT, "0.2.0").as_deref(),
        Some("### Added\n\n- a\n")
    );
    assert_eq!(section(TEXT, "0.1.0").as_deref(), Some("old\n"));
    assert_eq!(section(TEXT, "Unreleased").as_deref(), Some("new\n"));
    assert_eq!(section(TEXT, "0.3.0"), None);
}

#[test]
fn a_release_without_notes_is_refused() {
    let own = format!("## [{VERSION}] - 2027-01-01");
    for text in [
        "# Changelog\n\n## [Unreleased]\n\n- a\n",
        &format!("{own}\n"),
        &format!("{own}\n\n### Added\n\n## [0.0.1]\n\n- a\n"),
    ] {
        let error = notes_in(text, false).expect_err(text).to_string();
        assert!(error.contains(&format!("## [{VERSION}]")), "{error}");
    }
    let text = format!("{own}\n\n### Added\n\n- a\n");
    assert_eq!(notes_in(&text, false).expect("notes"), "### Added\n\n- a\n");
}

#[test]
fn a_trial_may_have_what_is_not_released_yet() {
    assert_eq!(
        notes_in("## [Unreleased]\n\n- a\n", true).expect("notes"),
        "- a\n"
    );
    assert!(notes_in("## [Unreleased]\n\n### Added\n", true).is_err());
}
