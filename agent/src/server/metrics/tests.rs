//! The page as a client gets it.

use std::{sync::Arc, time::Duration};

use super::{Format, text};
use crate::api::ProcessCost;
use crate::observe::{
    counters::ByResult,
    status::{Figures, PerPod, PodFigures},
    timings::Timings,
};
use sidetrack_datapath::kernel::{memory::MapMemory, usage::Usage};
use sidetrack_live::{Sidecar, SidecarCounts};
use sidetrack_reconcile::cni::CniAnswer;

fn figures() -> Figures {
    let timings = Timings::default();
    timings.enrolled(Duration::from_millis(30));
    timings.enrolled(Duration::from_secs(200));
    timings.answered_add(&CniAnswer::Refused(String::new()), Duration::from_millis(5));
    timings.answered_add(&CniAnswer::Done, Duration::from_millis(5));
    let usage = Usage {
        map: "ROUTES",
        then: "",
        cure: "",
        rows: 4,
        capacity: 8,
    };
    Figures {
        ready: true,
        pods: [("enrolled", 2), ("waiting", 0)].into(),
        meshes: [("istio", 1), ("kuma", 1)].into(),
        problems: 3,
        connections: [("out-all", 7)].into(),
        refusals: vec![("no-listener", 4)],
        maps: vec![usage],
        memory: vec![MapMemory {
            map: "ROUTES",
            bytes: 4096,
            row_bytes: 0,
            max_entries: 0,
        }],
        process: ProcessCost {
            resident_bytes: 1 << 24,
            cpu_seconds: 2.5,
            ..ProcessCost::default()
        },
        handshakes: vec![("own-pod", 3)],
        repairs: [("row", 1)].into(),
        timings: Arc::new(timings),
        without_listener: [("inbound", 1), ("outbound", 0), ("dns", 1)],
        sidecars: SidecarCounts {
            hangs: 2,
            waiting: 30,
            ..SidecarCounts::default()
        },
        per_pod: None,
    }
}

fn values(page: &str) -> Vec<&str> {
    let values = page.lines().filter(|line| !line.starts_with('#'));
    values
        .filter(|line| !line.starts_with("sidetrack_build_info{version=\""))
        .collect()
}

/// The values without an order of lines and labels, in which the formats differ, and with whole numbers alike.
fn series(page: &str) -> Vec<String> {
    let mut all: Vec<String> = values(page)
        .into_iter()
        .map(|line| {
            let line = line.replace(".0\"", "\"");
            let mut parts: Vec<&str> = line.split(['{', ',', '}']).collect();
            parts[1..].sort_unstable();
            parts.join(" ")
        })
        .collect();
    all.sort_unstable();
    all
}

#[test]
fn names_labels_and_values() {
    let page = text(figures(), Format::OpenMetrics).unwrap();
    let all = values(&page);
    let (timings, others): (Vec<&str>, Vec<&str>) = all
        .iter()
        .partition(|line| line.contains("_duration_seconds"));
    assert_eq!(
        others,
        [
            "sidetrack_ready 1",
            "sidetrack_pods{state=\"enrolled\"} 2",
            "sidetrack_pods{state=\"waiting\"} 0",
            "sidetrack_enrolled_pods{mesh=\"istio\"} 1",
            "sidetrack_enrolled_pods{mesh=\"kuma\"} 1",
            "sidetrack_pods_without_listener{port=\"inbound\"} 1",
            "sidetrack_pods_without_listener{port=\"outbound\"} 0",
            "sidetrack_pods_without_listener{port=\"dns\"} 1",
            "sidetrack_hanging_sidecars 2",
            "sidetrack_waiting_connections 30",
            "sidetrack_problems 3",
            "sidetrack_connections_total{rule=\"out-all\"} 7",
            "sidetrack_refusals_total{reason=\"no-listener\"} 4",
            "sidetrack_map_rows{map=\"ROUTES\"} 4",
            "sidetrack_map_capacity{map=\"ROUTES\"} 8",
            "sidetrack_map_memory_bytes{map=\"ROUTES\"} 4096",
            "process_resident_memory_bytes 16777216",
            "process_cpu_seconds_total 2.5",
            "sidetrack_handshakes_total{reason=\"own-pod\"} 3",
            "sidetrack_repairs_total{what=\"row\"} 1",
        ]
    );
    for line in [
        "sidetrack_enrollment_duration_seconds_bucket{le=\"0.025\"} 0",
        "sidetrack_enrollment_duration_seconds_bucket{le=\"0.05\"} 1",
        "sidetrack_enrollment_duration_seconds_bucket{le=\"120.0\"} 1",
        "sidetrack_enrollment_duration_seconds_bucket{le=\"+Inf\"} 2",
        "sidetrack_enrollment_duration_seconds_count 2",
        "sidetrack_enrollment_duration_seconds_sum 200.03",
        "sidetrack_cni_add_duration_seconds_bucket{le=\"0.005\",answer=\"refused\"} 1",
        "sidetrack_cni_add_duration_seconds_count{answer=\"refused\"} 1",
        "sidetrack_cni_add_duration_seconds_count{answer=\"enrolled\"} 0",
    ] {
        assert!(timings.contains(&line), "no {line}: {timings:#?}");
    }
    for line in [
        "# TYPE sidetrack_connections counter\n",
        "# UNIT sidetrack_enrollment_duration_seconds seconds\n",
        "# TYPE sidetrack_build info\nsidetrack_build_info{version=\"",
    ] {
        assert!(page.contains(line), "no {line}: {page}");
    }
    assert!(page.ends_with("# EOF\n"), "OpenMetrics requires it: {page}");
    let older = text(figures(), Format::Prometheus).unwrap();
    assert_eq!(
        series(&older),
        series(&page),
        "the same values in both formats"
    );
    let bucket = "sidetrack_enrollment_duration_seconds_bucket{le=\"120\"} 1\n";
    assert!(older.contains(bucket), "{older}");
    assert!(
        older.contains("# TYPE sidetrack_build_info gauge\n"),
        "{older}"
    );
    assert!(
        older.contains("# TYPE sidetrack_connections_total counter\n"),
        "{older}"
    );
    assert!(
        !older.contains("# UNIT") && !older.contains("# EOF"),
        "{older}"
    );
}

#[test]
fn single_pods_only_where_they_are_wanted() {
    let mut figures = figures();
    let page = text(figures.clone(), Format::OpenMetrics).unwrap();
    assert!(!page.contains("sidetrack_pod_"), "{page}");
    assert!(!page.contains("left_out"), "{page}");
    let pod = |name: &str, outbound_listener, dns_listener| PodFigures {
        namespace: "shop".to_owned(),
        name: name.to_owned(),
        cookie: 1,
        inbound_listener: Some(false),
        outbound_listener,
        dns_listener,
        sidecar: Sidecar::Hangs {
            waiting: 15,
            seconds: 4,
        },
        live_problem: false,
        terminating: false,
        connections: ByResult::default(),
    };
    figures.per_pod = Some(PerPod {
        pods: vec![
            pod("web-0", Some(true), Some(false)),
            pod("web-1", None, None),
        ],
        omitted: 5,
    });
    let page = text(figures, Format::OpenMetrics).unwrap();
    let mut wanted = Vec::new();
    for (pod, port, up) in [
        ("web-0", "inbound", 0),
        ("web-0", "outbound", 1),
        ("web-0", "dns", 0),
        // Of its outbound port it is not known.
        ("web-1", "inbound", 0),
    ] {
        wanted.push(format!(
            "sidetrack_pod_listener{{namespace=\"shop\",pod=\"{pod}\",port=\"{port}\"}} {up}"
        ));
    }
    for pod in ["web-0", "web-1"] {
        wanted.push(format!(
            "sidetrack_pod_waiting_connections{{namespace=\"shop\",pod=\"{pod}\"}} 15"
        ));
    }
    for pod in ["web-0", "web-1"] {
        for result in [
            "outbound-redirected",
            "inbound-redirected",
            "untouched",
            "before-sidecar",
            "udp",
            "refused",
            "given-up",
        ] {
            wanted.push(format!(
                "sidetrack_pod_connections_total{{namespace=\"shop\",pod=\"{pod}\",result=\"{result}\"}} 0"
            ));
        }
    }
    wanted.push("sidetrack_pods_left_out 5".to_owned());
    let all = values(&page);
    assert_eq!(all[all.len() - wanted.len()..], wanted);
}
