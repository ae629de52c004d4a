use std::{fs, net::IpAddr, path::PathBuf, time::Duration};

use sidetrack_common::ids::NetnsCookie;
use tempfile::TempDir;

use super::Resolvers;
use crate::netns::resolv_conf::ResolvConf;

const COOKIE: NetnsCookie = NetnsCookie::new(7);

/// What looks like the `/proc/PID` of a process with a root of its own, whose file names this server.
fn process(server: &str) -> (TempDir, ResolvConf) {
    let dir = tempfile::tempdir().expect("a directory");
    for below in ["ns", "root/etc"] {
        fs::create_dir_all(dir.path().join(below)).expect("a directory in it");
    }
    fs::write(dir.path().join("ns/mnt"), "").expect("a file in it");
    let text = format!("nameserver {server}\n");
    fs::write(dir.path().join("root/etc/resolv.conf"), text).expect("resolv.conf");
    let source = ResolvConf {
        process: Some(dir.path().to_owned()),
        netns: PathBuf::new(),
    };
    (dir, source)
}

fn servers(server: &str) -> Vec<IpAddr> {
    vec![server.parse().expect("an address")]
}

/// Waits until the read that runs has answered.
async fn answered(resolvers: &Resolvers) {
    while resolvers.answers.1.is_empty() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

#[tokio::test]
async fn a_file_is_followed() {
    let (_dir, source) = process("10.0.0.1");
    let mut resolvers = Resolvers::default();
    resolvers.start("shop", COOKIE, source);
    answered(&resolvers).await;
    assert_eq!(resolvers.read(), [(COOKIE, servers("10.0.0.1"))]);
}

#[tokio::test]
async fn what_was_read_for_an_earlier_enrollment_is_not_used() {
    let (_dir, earlier) = process("10.0.0.1");
    let (_other, source) = process("10.0.0.2");
    let mut resolvers = Resolvers::default();
    resolvers.start("shop", COOKIE, earlier);
    answered(&resolvers).await;
    let first = loop {
        // It has answered, and may end a moment later.
        if let Some(first) = resolvers.first("shop", COOKIE, source.clone()).await {
            break first;
        }
    };
    assert_eq!(first, servers("10.0.0.2"));
    assert_eq!(resolvers.read(), []);
}

#[tokio::test]
async fn a_file_that_cannot_be_read_says_nothing_of_its_servers() {
    let (dir, source) = process("10.0.0.1");
    let file = dir.path().join("root/etc/resolv.conf");
    fs::remove_file(&file).expect("no file");
    fs::create_dir(&file).expect("a directory in its place");
    let mut resolvers = Resolvers::default();
    assert_eq!(resolvers.first("shop", COOKIE, source).await, None);
}
