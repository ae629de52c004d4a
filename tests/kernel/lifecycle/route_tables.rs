//! Random routing tables: the rows against the kernel's own lookups.

#[path = "../../fuzz/src/routes.rs"]
mod routes;

use std::thread;

use anyhow::{Result, anyhow};

kernel_test!(random_tables_are_flattened_as_the_kernel_looks_up);
fn random_tables_are_flattened_as_the_kernel_looks_up() -> Result<()> {
    const TABLES: usize = 150;
    // A thread of its own: it stays in the namespace that it makes.
    let checked = thread::spawn(|| {
        let tables = routes::Tables::new();
        for _ in 0..TABLES {
            let bytes: Vec<u8> = (0..4 * fastrand::usize(1..24))
                .map(|_| fastrand::u8(..))
                .collect();
            tables.check(&bytes);
        }
    });
    checked.join().map_err(|panic| {
        anyhow!(
            "{}",
            panic.downcast_ref::<String>().cloned().unwrap_or_default()
        )
    })
}
