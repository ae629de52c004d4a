use std::{
    fs::{self, File, Permissions},
    io::{Read as _, Seek as _},
    os::unix::fs::{PermissionsExt as _, symlink},
    path::PathBuf,
};

use super::{are_same, replace, replace_by_copy, temporary};

/// A directory that is removed at the end of the test.
struct Dir(PathBuf);

impl Dir {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("sidetrack-{}-{name}", std::process::id()));
        fs::create_dir(&path).expect("a directory");
        Self(path)
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A file, or a link, is where the new one is written first.
#[test]
fn a_secret_is_never_in_a_file_of_others() {
    let dir = Dir::new("secret");
    let (path, temporary) = (dir.0.join("key"), dir.0.join(".key.sidetrack-new"));
    fs::write(&temporary, "").expect("a file");
    fs::set_permissions(&temporary, Permissions::from_mode(0o666)).expect("a mode");
    let mut opened = File::open(&temporary).expect("a reader");
    replace(&path, b"secret", 0o600).expect("written");
    let mut seen = String::new();
    opened.read_to_string(&mut seen).expect("readable");
    assert_eq!(seen, "");
    assert_eq!(
        fs::metadata(&path).expect("there").permissions().mode() & 0o777,
        0o600
    );

    let elsewhere = dir.0.join("elsewhere");
    symlink(&elsewhere, &temporary).expect("a link");
    replace(&path, b"another", 0o600).expect("written");
    assert!(!elsewhere.exists());
    assert_eq!(fs::read(&path).expect("there"), b"another");
}

#[test]
fn large_files_are_compared_and_copied_in_parts() {
    let dir = Dir::new("large");
    let mut content = vec![7; 300_000];
    let (one, other) = (dir.0.join("one"), dir.0.join("other"));
    fs::write(&one, &content).expect("a file");
    let same = |one: &PathBuf, other: &PathBuf| {
        let (mut one, mut other) = (
            File::open(one).expect("one"),
            File::open(other).expect("other"),
        );
        are_same(&mut one, &mut other).expect("readable")
    };
    for change in [299_999, 65_536, 0] {
        content[change] = 8;
        fs::write(&other, &content).expect("a file");
        assert!(!same(&one, &other), "{change}");
    }
    fs::write(&other, &content[..299_999]).expect("a file");
    assert!(!same(&one, &other), "shorter");
    let mut source = File::open(&one).expect("one");
    source.rewind().expect("its beginning");
    replace_by_copy(&other, &mut source, 0o755).expect("copied");
    assert!(same(&one, &other));
}

#[test]
fn a_file_that_another_process_writes_is_left_to_it() {
    let directory = Dir::new("locked");
    let path = directory.0.join("config");
    let writing = File::create(temporary(&path)).expect("created");
    writing.lock().expect("locked");
    let refused = format!("{:#}", replace(&path, b"mine", 0o600).expect_err("refused"));
    assert!(refused.contains("another process writes it"), "{refused}");
    assert!(temporary(&path).exists());
    drop(writing);
    replace(&path, b"mine", 0o600).expect("an abandoned one is overwritten");
}
