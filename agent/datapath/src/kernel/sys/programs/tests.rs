use std::io;

use super::with_verifier_log;

fn refused(log: &[u8]) -> String {
    with_verifier_log(io::Error::other("refused"), log).to_string()
}

#[test]
fn errors_carry_the_last_lines_of_the_verifier_log() {
    assert_eq!(refused(b""), "refused");
    assert_eq!(refused(b"\0\0"), "refused");
    assert_eq!(refused(b"bad\0rest"), "refused (verifier: bad)");
    assert_eq!(
        refused(b"1\n2\n3\n4\n5\n"),
        "refused (verifier: 2; 3; 4; 5)"
    );
}
