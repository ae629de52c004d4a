use super::{processors, summary};
use crate::api::{Cost, MapCost, ProcessCost};

fn cost() -> Cost {
    Cost {
        enrolled: 2,
        maps: vec![MapCost {
            map: "DESTINATIONS".to_owned(),
            bytes: 4 << 20,
            row_bytes: 4096,
            rows: Some(3),
            capacity: Some(262_144),
        }],
        maps_exact: true,
        agent: Some(ProcessCost {
            resident_bytes: 17 << 20,
            peak_resident_bytes: 19 << 20,
            cpu_seconds: 6.0,
            uptime_seconds: 600.0,
        }),
    }
}

#[test]
fn pods_have_their_part_of_the_rows() {
    assert_eq!(
        summary(&cost(), Some(0.004)),
        [
            "maps       4.0 MiB, of which 4.0 KiB are rows of 2 enrolled pods: 2.0 KiB each",
            "agent      17.0 MiB resident, at most 19.0 MiB so far",
            "processor  0.4 % of one now, 1.0 % since its start 10m ago. What the kernel programs take counts as the pods' own",
            "in all     21.0 MiB of memory",
        ]
    );
}

#[test]
fn what_is_not_known_is_not_claimed() {
    let estimate = Cost {
        maps_exact: false,
        agent: None,
        ..cost()
    };
    let lines = summary(&estimate, None);
    assert!(lines[0].contains("at most, if all were full"), "{lines:?}");
    assert_eq!(lines[1], "agent      none");
    let no_pods = Cost {
        enrolled: 0,
        ..cost()
    };
    assert_eq!(
        summary(&no_pods, None)[0],
        "maps       4.0 MiB, 0 enrolled pods"
    );
}

#[test]
fn processor_use_is_of_the_time_between() {
    let at = |uptime_seconds, cpu_seconds| ProcessCost {
        uptime_seconds,
        cpu_seconds,
        ..ProcessCost::default()
    };
    assert_eq!(processors(&at(1.0, 1.0), &at(3.0, 1.5)), Some(0.25));
    assert_eq!(processors(&at(1.0, 1.0), &at(1.0, 1.5)), None);
}
