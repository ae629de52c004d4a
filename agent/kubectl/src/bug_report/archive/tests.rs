use std::process::{Command, Stdio};

use super::Archive;

#[test]
fn tar_reads_it() {
    let mut archive = Archive::new(Vec::new());
    let node = "n".repeat(120);
    let directory = format!("report/nodes/{node}");
    archive.add("report", "README", b"text\n").expect("written");
    let block = vec![b'x'; 512];
    archive
        .add(&directory, "status.json", &block)
        .expect("written");
    assert!(archive.add(&node.repeat(2), "status.json", b"").is_err());
    let bytes = archive.finish().expect("written");
    let file = tempfile();
    std::fs::write(&file, bytes).expect("written");
    let tar = |words: &[&str]| {
        let mut command = Command::new("tar");
        command.args(words).arg(&file).stderr(Stdio::inherit());
        command.output().expect("tar").stdout
    };
    let names = String::from_utf8(tar(&["-tf"])).expect("text");
    assert_eq!(names, format!("report/README\n{directory}/status.json\n"));
    let content = tar(&["--to-stdout", "-xf"]);
    assert_eq!(content, [b"text\n", block.as_slice()].concat());
    std::fs::remove_file(file).expect("removed");
}

fn tempfile() -> std::path::PathBuf {
    std::env::temp_dir().join(format!("sidetrack-archive-{}.tar", std::process::id()))
}
