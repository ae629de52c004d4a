//! Values that the agent's options take and refuse.

use crate::run::run;

/// With `--help` the agent reads its arguments, and does not start.
const AGENT: [&str; 5] = [
    "agent",
    "--pods-dir",
    "/nowhere",
    "--metrics-addr",
    "127.0.0.1:0",
];

#[test]
fn metrics_per_pod_has_a_range() {
    let with = |value| run(&[&AGENT[..], &["--metrics-per-pod", value, "--help"]].concat());
    for value in ["0", "1", "4096"] {
        assert!(with(value).text().contains("--metrics-per-pod"), "{value}");
    }
    for value in ["4097", "4294967296", "many"] {
        let error = with(value).error(2).to_owned();
        assert!(error.contains("--metrics-per-pod"), "{value}: {error}");
    }
    assert!(with("4097").error(2).contains("4097 is not in 0..=4096"));
    // Without the port there is nothing to show them.
    let alone = run(&["agent", "--pods-dir", "/nowhere", "--metrics-per-pod", "1"]);
    assert!(alone.error(2).contains("--metrics-addr"), "{alone:?}");
}
