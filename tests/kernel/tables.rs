//! What the agent lists of a map while the kernel programs change it.

use std::{
    collections::BTreeMap,
    sync::atomic::{AtomicBool, Ordering},
    thread,
};

use anyhow::{Result, ensure};
use aya_obj::generated::bpf_map_type::BPF_MAP_TYPE_HASH;
use lab::product::{Table, sys};

/// Rows that stay.
const STAY: u64 = 20_000;

kernel_test!(rows_are_listed_once_while_others_come_and_go);
fn rows_are_listed_once_while_others_come_and_go() -> Result<()> {
    let map = sys::map_create(BPF_MAP_TYPE_HASH, "test_rows", 8, 8, 32_768, 0)?;
    let table: Table<u64, u64> = Table::new(map)?;
    for key in 0..STAY {
        table.insert(&key, &(key * 3))?;
    }
    ensure!(table.usage()? == (STAY, 32_768), "{:?}", table.usage()?);
    let ended = AtomicBool::new(false);
    thread::scope(|scope| {
        let others = scope.spawn(|| -> Result<()> {
            while !ended.load(Ordering::Relaxed) {
                for key in STAY..STAY + 1000 {
                    table.insert(&key, &(key * 3))?;
                    table.remove(&key)?;
                }
            }
            Ok(())
        });
        let listed = (0..200).try_for_each(|_| check(&table.rows()?));
        ended.store(true, Ordering::Relaxed);
        others
            .join()
            .expect("the thread does not panic")
            .and(listed)
    })?;
    let mut keys = table.keys()?;
    keys.sort_unstable();
    ensure!(keys.into_iter().eq(0..STAY), "other keys than rows");
    Ok(())
}

fn check(rows: &[(u64, u64)]) -> Result<()> {
    let once: BTreeMap<u64, u64> = rows.iter().copied().collect();
    ensure!(once.len() == rows.len(), "a row is there twice");
    ensure!(
        once.iter().all(|(key, value)| *value == key * 3),
        "a value is another row's"
    );
    ensure!(
        once.range(..STAY).count() as u64 == STAY,
        "a row is missing"
    );
    Ok(())
}
