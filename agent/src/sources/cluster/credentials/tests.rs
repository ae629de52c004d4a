use super::{Credentials, fs};

#[test]
fn only_others_that_are_there_are_a_change() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("config");
    fs::write(&path, "one").expect("a file");
    let credentials = Credentials::at(path.clone());
    assert!(!credentials.have_changed());
    fs::remove_file(&path).expect("it was there");
    assert!(
        !credentials.have_changed(),
        "nothing would be better with none"
    );
    fs::write(&path, "other").expect("a file");
    assert!(credentials.have_changed());
}
