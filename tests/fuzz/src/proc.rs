//! Texts of /proc and of cgroups that a pod's processes have a part in.

use sidetrack_datapath::netns::processes::{pids_in, pod_uids};
use sidetrack_policy::ids::IdMaps;

/// Reads a text in every way.
pub fn check(input: &[u8]) {
    let text = String::from_utf8_lossy(input);
    if let Some(uid) = pod_uids(&text).next() {
        // It becomes part of paths and of rows of fixed size.
        assert!(uid.len() < sidetrack_common::pod::UID_LEN, "{uid:?}");
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
        assert!(!uid.is_empty() && uid.bytes().all(plain), "{uid:?}");
    }
    assert!(pids_in(&text).all(|pid| pid > 0));
    let (uids, gids) = text.split_once("\n\n").unwrap_or((&text, &text));
    let maps = IdMaps::parse(uids, gids);
    for id in [0, 1, 1337, 65_534, u32::MAX - 1, u32::MAX] {
        // No user has this id on the node; the kernel programs take it for "no owner".
        assert_ne!(maps.uid(id).ok(), Some(u32::MAX));
        assert_ne!(maps.gid(id).ok(), Some(u32::MAX));
    }
}
