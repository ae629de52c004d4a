use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use anyhow::{Result, bail};

use super::{Changed, SET_BACK_TIMEOUT, note};

/// Whether they are looked for again.
fn continues(age: Duration, result: &Result<bool>) -> bool {
    let until = Instant::now() + SET_BACK_TIMEOUT - age;
    let entry = Changed::ToSetBack {
        netns: (),
        ports: vec![15001],
        until,
    };
    let mut changed = BTreeMap::from([(7, entry), (8, Changed::Needed(vec![15001]))]);
    note(&mut changed, 7, result);
    note(&mut changed, 8, result);
    assert!(changed.contains_key(&8), "what is needed stays");
    changed.contains_key(&7)
}

#[test]
fn listeners_are_set_back_until_none_is_left() {
    let failed = || -> Result<bool> { bail!("no descriptor") };
    assert!(!continues(Duration::ZERO, &Ok(true)));
    for (result, age) in [(Ok(false), 59), (failed(), 59)] {
        assert!(continues(Duration::from_secs(age), &result), "{result:?}");
    }
    for result in [Ok(false), failed()] {
        assert!(!continues(SET_BACK_TIMEOUT, &result), "{result:?}");
    }
}
