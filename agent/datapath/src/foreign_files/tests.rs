use std::{
    fs::{self, File},
    io,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    sync::mpsc,
    time::Duration,
};

use nix::{sys::stat::Mode, unistd::mkfifo};
use serde::{Deserialize, Serialize};

use super::{HANGS_AFTER, Job, MAX_OF_HOLDER, Runner, start, wait};
use crate::kernel::sys;

/// Opens a file, and answers its size. A pipe without a writer hangs.
#[derive(Debug, Serialize, Deserialize)]
struct Open(PathBuf);

impl Job for Open {
    const NAME: &'static str = "open";
    type Answer = u64;

    fn run(self) -> io::Result<(u64, Option<OwnedFd>)> {
        let file = File::open(self.0)?;
        Ok((file.metadata()?.len(), Some(file.into())))
    }
}

const SOON: Duration = Duration::from_millis(50);
const LONG: Duration = Duration::from_secs(10);

fn pipe(path: &Path) -> Open {
    mkfifo(path, Mode::S_IRWXU).expect("a pipe");
    Open(path.to_owned())
}

#[test]
fn calls_that_hang_use_the_quota_of_their_holder() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = |name: &str| dir.path().join(name);
    fs::write(path("file"), "text").expect("a file");
    let file = Open(path("file"));
    let hanging: Vec<Open> = ["one", "two"].map(|name| pipe(&path(name))).into();
    assert_eq!(hanging.len(), MAX_OF_HOLDER);
    let problem = |timeout| wait("hostile", &file, timeout).map(|_| ()).unwrap_err();
    for job in &hanging {
        start("hostile", job, |_| ());
    }
    // It waits for its turn, and is refused at once when it is clear that none comes.
    let (sender, late) = mpsc::channel();
    start("hostile", &file, move |outcome| {
        let _ = sender.send(outcome.map(|(size, _)| size));
    });
    std::thread::sleep(HANGS_AFTER);
    let refused = problem(LONG);
    assert_eq!(refused.kind(), io::ErrorKind::WouldBlock);
    assert!(
        refused.to_string().contains("another read for hostile"),
        "{refused}"
    );
    // Others are answered, with the descriptor.
    let (size, descriptor) = wait("other", &file, LONG).expect("an answer");
    assert!(size == 4 && descriptor.is_some());
    // What waited has its turn as soon as one returns.
    let _writer = File::options()
        .write(true)
        .open(&hanging[0].0)
        .expect("a writer");
    assert_eq!(
        late.recv_timeout(LONG)
            .expect("an outcome")
            .expect("a size"),
        4
    );
    wait("hostile", &file, LONG).expect("an answer");
    // No thread waits any more.
    File::options()
        .write(true)
        .open(&hanging[1].0)
        .expect("a writer");
}

/// A caller waits for such a file once.
#[test]
fn a_caller_waits_once_for_a_holder_that_hangs() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = |name: &str| dir.path().join(name);
    fs::write(path("file"), "text").expect("a file");
    let (file, hanging) = (Open(path("file")), pipe(&path("pipe")));
    let kind = |job: &Open, timeout| wait("slow", job, timeout).map(|_| ()).unwrap_err().kind();
    assert_eq!(kind(&hanging, SOON), io::ErrorKind::TimedOut);
    assert_eq!(kind(&file, LONG), io::ErrorKind::WouldBlock);
    let _writer = File::options()
        .write(true)
        .open(path("pipe"))
        .expect("a writer");
    while wait("slow", &file, LONG).is_err() {
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn errors_are_those_of_the_job() {
    let error = |path: &str| {
        let job = Open(path.into());
        wait("errors", &job, LONG).map(|_| ()).unwrap_err()
    };
    assert_eq!(error("/nonexistent").kind(), io::ErrorKind::NotFound);
}

/// The helper's answers as the agent reads them.
#[test]
fn the_helper_answers_with_descriptors_and_errors() {
    const RUNNERS: &[Runner] = &[Runner::of::<Open>()];
    let (own, other) = sys::message_sockets().expect("sockets");
    let helper = std::thread::spawn(move || super::helper::serve_on(other, RUNNERS));
    let dir = tempfile::tempdir().expect("a directory");
    fs::write(dir.path().join("file"), "text").expect("a file");
    let ask = |job: &str, path: &Path| {
        use std::os::fd::AsFd as _;
        let question = super::Question {
            number: 7,
            job: job.to_owned(),
            argument: serde_json::to_value(path).expect("JSON"),
        };
        let text = serde_json::to_vec(&question).expect("JSON");
        sys::send_message(own.as_fd(), &text, None).expect("sent");
        let mut room = vec![0; 4096];
        let (length, descriptor) = sys::receive_message(own.as_fd(), &mut room).expect("an answer");
        let answer: super::Answer = serde_json::from_slice(&room[..length]).expect("JSON");
        assert_eq!(answer.number, 7);
        answer.outcome(descriptor)
    };
    let (size, descriptor) = ask("open", &dir.path().join("file")).expect("an answer");
    assert_eq!(size, 4);
    let read = io::read_to_string(File::from(descriptor.expect("a descriptor")));
    assert_eq!(read.expect("a text"), "text");
    let missing = ask("open", &dir.path().join("missing")).unwrap_err();
    assert_eq!(missing.kind(), io::ErrorKind::NotFound);
    let unknown = ask("close", dir.path()).unwrap_err();
    assert!(unknown.to_string().contains("no such job"), "{unknown}");
    drop(own);
    helper
        .join()
        .expect("no panic")
        .expect("it ends with the agent");
}
