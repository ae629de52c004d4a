//! Ids in user namespaces.

use super::IdMaps;

#[test]
fn ids_are_mapped() {
    let text = "         0     100000       1000\n      1337      1337          1\n";
    let maps = IdMaps::parse(text, text);
    for (id, expected) in [
        (0, Some(100_000)),
        (999, Some(100_999)),
        (1000, None),
        (1336, None),
        (1337, Some(1337)),
        (1338, None),
    ] {
        assert_eq!(maps.uid(id).ok(), expected, "uid {id}");
        assert_eq!(maps.gid(id).ok(), expected, "gid {id}");
    }
    assert_eq!(maps.to_string(), "0 is 100000");
}

#[test]
fn users_and_groups_have_maps_of_their_own() {
    let maps = IdMaps::parse("0 5 1", "0 7 1");
    assert_eq!((maps.uid(0), maps.gid(0)), (Ok(5), Ok(7)));
    let user = maps.uid(1).unwrap_err().to_string();
    assert!(
        user.starts_with("user 1 does not exist in the pod's user namespace"),
        "{user}"
    );
    let group = maps.gid(1).unwrap_err().to_string();
    assert!(group.starts_with("group 1 does not exist"), "{group}");
}

#[test]
fn the_node_itself() {
    let node = IdMaps::of_node();
    for id in [0, 1337, u32::MAX - 1] {
        assert_eq!((node.uid(id), node.gid(id)), (Ok(id), Ok(id)));
    }
    assert_eq!(node.to_string(), "");
}

#[test]
fn maps_that_are_no_maps() {
    for text in ["", "\n", "a b c", "0 1", "0 1 -1"] {
        let maps = IdMaps::parse(text, text);
        assert!(maps.uid(0).is_err(), "{text:?}");
        assert_eq!(maps.to_string(), "", "{text:?}");
    }
    // The kernel allows no such map; adding must not overflow.
    assert!(IdMaps::parse("0 4294967295 10", "").uid(5).is_err());
}
