use super::Arguments;

#[test]
fn flags_are_found_with_and_without_a_value() {
    let arguments = Arguments {
        words: ["--other=x", "--down", "y"].map(Into::into).to_vec(),
    };
    assert!(arguments.has("--other") && arguments.has("--down"));
    assert!(!arguments.has("--o") && !arguments.has("x") && !arguments.ask_for_help());
}
