//! Ids in user namespaces.

use super::IdMaps;

#[test]
fn ids_are_mapped() {
    let text = "         0     100000       1000\n      1337      1337          1\n";
    let maps = IdMaps::parse(text, text);
    assert_eq!(maps.uid(0), Ok(100_000));
    assert_eq!(maps.uid(999), Ok(100_999));
    assert_eq!(maps.gid(1337), Ok(1337));
    assert!(maps.uid(1000).is_err());
    assert_eq!(IdMaps::of_node().uid(1337), Ok(1337));
    assert_eq!(maps.to_string(), "0 is 100000");
    assert_eq!(IdMaps::of_node().to_string(), "");
}
