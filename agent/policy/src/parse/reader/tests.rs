//! Lists and their bounds.

use super::{
    super::values::{id, port},
    Reader, Settings,
};
use crate::inputs::{Input, Inputs};

/// The values of a list, and its errors.
fn ports(text: &str) -> (Option<Vec<u16>>, Vec<String>) {
    read(text, |reader| reader.list(Input::OutboundPorts, port))
}

fn ids(text: &str) -> (Option<Vec<u32>>, Vec<String>) {
    read(text, |reader| reader.list(Input::OutboundPorts, id))
}

fn read<T>(text: &str, list: impl FnOnce(&mut Reader<'_>) -> T) -> (T, Vec<String>) {
    let mut inputs = Inputs::default();
    inputs.set(Input::OutboundPorts, text, "here".to_owned());
    let mut reader = Reader {
        inputs: &inputs,
        settings: Settings::default(),
    };
    let values = list(&mut reader);
    let errors = reader.settings.errors.into_iter();
    (values, errors.map(|error| error.problem).collect())
}

#[test]
fn empty_items_are_dropped() {
    assert_eq!(ports(" 80, ,443,,"), (Some(vec![80, 443]), vec![]));
    assert_eq!(ports(""), (Some(vec![]), vec![]));
    let mut unset = Reader {
        inputs: &Inputs::default(),
        settings: Settings::default(),
    };
    assert_eq!(unset.list(Input::OutboundPorts, port), None);
    assert_eq!(unset.one(Input::EnvoyPort, port), None);
    assert_eq!(unset.settings.errors, []);
}

#[test]
fn the_longest_lists() {
    let (values, errors) = ports(&"80,".repeat(10_000));
    assert_eq!(
        (values.map(|values| values.len()), errors),
        (Some(10_000), vec![])
    );
    let (values, errors) = ports(&"80,".repeat(10_001));
    assert_eq!(values.map(|values| values.len()), Some(10_000));
    assert_eq!(errors, ["write at most 10000 entries"]);
    let (_, errors) = ids(&"5,".repeat(1000));
    assert_eq!(errors, [""; 0]);
    let (_, errors) = ids(&"5,".repeat(1001));
    assert_eq!(errors, ["write at most 1000 entries"]);
}

/// Bad entries count as well, so that a long list of them ends, too.
#[test]
fn good_and_bad_entries_count_together() {
    let text = "80,".repeat(5000) + &"x,".repeat(5000);
    let (values, errors) = ports(&text);
    assert_eq!(values.map(|values| values.len()), Some(5000));
    assert!(
        !errors.iter().any(|error| error.contains("at most")),
        "{errors:?}"
    );
    let (_, errors) = ports(&(text + "x"));
    assert_eq!(errors[10], "write at most 10000 entries");
}

#[test]
fn ten_bad_entries_are_named() {
    let (_, errors) = ports(&"x,".repeat(10));
    assert_eq!(errors.len(), 10);
    for (bad, more) in [(11, 1), (12, 2), (35, 25)] {
        let (_, errors) = ports(&"x,".repeat(bad));
        assert_eq!(errors.len(), 11);
        assert_eq!(errors[10], format!("{more} more entries cannot be used"));
    }
    let (values, errors) = ports("80,x,y");
    assert_eq!((values, errors.len()), (Some(vec![80]), 2));
}
