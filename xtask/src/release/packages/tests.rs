use serde_json::Value;

use super::{VERSION, plugin};
use crate::arch::Arch;

#[test]
fn the_manifest_has_what_krew_requires() {
    // Sums that YAML takes for numbers if they stand without quotes.
    let sums = [
        (Arch::Amd64, format!("12e{}", "3".repeat(61))),
        (Arch::Arm64, "1".repeat(64)),
    ];
    let text = serde_saphyr::to_string(&plugin("https://example.com/v1", &sums)).expect("YAML");
    let read: Value = serde_saphyr::from_str(&text).expect("YAML");
    assert_eq!(read, plugin("https://example.com/v1", &sums), "{text}");

    assert_eq!(
        read["apiVersion"],
        "krew.googlecontainertools.github.com/v1alpha2"
    );
    assert_eq!(read["kind"], "Plugin");
    assert_eq!(read["metadata"]["name"], "sidetrack");
    let spec = &read["spec"];
    assert_eq!(spec["version"], format!("v{VERSION}"));
    assert!(spec["shortDescription"].is_string());
    let platforms = spec["platforms"].as_array().expect("a list");
    assert_eq!(platforms.len(), sums.len());
    for (platform, (arch, sum)) in platforms.iter().zip(&sums) {
        assert_eq!(platform["selector"]["matchLabels"]["os"], "linux");
        assert_eq!(platform["selector"]["matchLabels"]["arch"], arch.name());
        assert_eq!(platform["sha256"], *sum);
        let archive = format!("kubectl-sidetrack-{VERSION}-linux-{}.tar.gz", arch.name());
        assert_eq!(platform["uri"], format!("https://example.com/v1/{archive}"));
        assert_eq!(platform["bin"], "kubectl-sidetrack");
        assert_eq!(platform["files"][0]["from"], "kubectl-sidetrack");
    }
}
