use super::section;

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
