use std::time::Duration;

use sidetrack_datapath::kernel::{memory::MapMemory, usage::Usage};

use super::{cost, own_process};

#[test]
fn maps_have_rows_where_they_are_counted() {
    let memory = |map, bytes, row_bytes| MapMemory {
        max_entries: 0,
        map,
        bytes,
        row_bytes,
    };
    let usage = Usage {
        map: "ROUTES",
        then: "",
        cure: "",
        rows: 4,
        capacity: 8,
    };
    let maps = [memory("ROUTES", 300, 100), memory("EVENTS", 50, 0)];
    let cost = cost(2, &maps, &[usage], None);
    assert_eq!((cost.map_bytes(), cost.row_bytes()), (350, 100));
    assert_eq!(
        (cost.maps[0].rows, cost.maps[0].capacity),
        (Some(4), Some(8))
    );
    assert_eq!((cost.maps[1].rows, cost.maps[1].capacity), (None, None));
}

#[test]
fn a_process_has_memory_and_has_run() {
    let own = own_process(Duration::from_secs(5)).expect("this process");
    assert!(own.resident_bytes > 100_000, "{own:?}");
    assert!(own.peak_resident_bytes >= own.resident_bytes, "{own:?}");
    assert!(own.cpu_seconds > 0.0, "{own:?}");
}
