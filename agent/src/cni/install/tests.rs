use std::{fs, os::unix::fs::PermissionsExt as _, path::Path};

use tempfile::TempDir;

use super::{Entries, Entry, Installation, Unmaintained, keeper::Keeper};

const CALICO: &str = r#"{
  "name": "k8s-pod-network",
  "cniVersion": "0.3.1",
  "plugins": [
    {"type": "calico", "mtu": 1.5e3, "ipam": {"type": "calico-ipam"},
     "policy": {"type": "k8s"}},
    {"type": "portmap", "snat": true, "capabilities": {"portMappings": true}}
  ]
}
"#;
const SINGLE: &str =
    r#"{"cniVersion": "0.3.1", "name": "net", "type": "bridge", "isGateway": true}"#;

struct Node {
    dir: TempDir,
    installation: Installation,
}

impl Node {
    fn new(file: &str, text: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        for name in ["bin", "net.d"] {
            fs::create_dir(dir.path().join(name)).unwrap();
        }
        fs::write(dir.path().join("net.d").join(file), text).unwrap();
        let installation = Installation {
            bin_dir: dir.path().join("bin"),
            conf_dir: dir.path().join("net.d"),
            entry: Entry::new(Path::new("/run/s.sock"), 10, vec!["kube-system".to_owned()]),
            credentials: None,
        };
        Self { dir, installation }
    }

    fn read(&self, file: &str) -> String {
        fs::read_to_string(self.dir.path().join("net.d").join(file)).unwrap()
    }

    fn types(&self, file: &str) -> Vec<String> {
        let config: serde_json::Value = serde_json::from_str(&self.read(file)).unwrap();
        let plugins = config["plugins"].as_array().unwrap();
        plugins
            .iter()
            .map(|plugin| plugin["type"].as_str().unwrap().to_owned())
            .collect()
    }

    fn files(&self) -> Vec<String> {
        let entries = fs::read_dir(self.dir.path().join("net.d")).unwrap();
        let mut names: Vec<String> = entries
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }
}

#[test]
fn the_plugin_is_added_after_the_others_and_removed() {
    let node = Node::new("10-calico.conflist", CALICO);
    fs::write(node.dir.path().join("net.d/99-loopback.conf"), SINGLE).unwrap();
    assert_eq!(node.installation.install().unwrap().len(), 2);
    assert_eq!(
        node.types("10-calico.conflist"),
        ["calico", "portmap", "sidetrack-cni"]
    );
    assert!(
        node.read("10-calico.conflist").contains("1.5e3"),
        "what others wrote stays byte for byte"
    );
    let binary = node.installation.binary();
    assert_eq!(
        fs::metadata(&binary).unwrap().permissions().mode() & 0o777,
        0o755
    );
    assert!(node.installation.install().unwrap().is_empty(), "twice");
    assert_eq!(node.files().len(), 2, "no temporary file remains");

    assert_eq!(node.installation.remove(false).unwrap().len(), 2);
    assert_eq!(node.types("10-calico.conflist"), ["calico", "portmap"]);
    assert!(!binary.exists());
    assert!(node.installation.remove(false).unwrap().is_empty());
}

#[test]
fn a_single_plugin_becomes_a_list_and_is_restored() {
    let node = Node::new("10-net.conf", SINGLE);
    node.installation.install().unwrap();
    assert_eq!(
        node.files(),
        ["10-net.conf.sidetrack-saved", "10-net.conflist"]
    );
    assert_eq!(node.types("10-net.conflist"), ["bridge", "sidetrack-cni"]);
    assert!(node.installation.install().unwrap().is_empty());
    node.installation.remove(true).unwrap();
    assert_eq!(node.files(), ["10-net.conf"]);
    assert_eq!(node.read("10-net.conf"), SINGLE);
    assert!(node.installation.binary().exists(), "kept");
}

#[test]
fn a_rewritten_single_plugin_becomes_a_list_again() {
    let other = SINGLE.replace("bridge", "ptp");
    for file in ["10-net.conf", "10-net.json"] {
        let node = Node::new(file, SINGLE);
        let mut keeper = Keeper::new(node.installation.clone());
        keeper.turn();
        fs::write(node.dir.path().join("net.d").join(file), &other).unwrap();
        keeper.turn();
        keeper.turn();
        assert_eq!(keeper.problem(), None);
        assert!(keeper.is_in_place());
        assert_eq!(node.files().len(), 2, "the original is saved");
        assert_eq!(node.types("10-net.conflist"), ["ptp", "sidetrack-cni"]);
        // Rewritten once more, without a check before the removal.
        let last = SINGLE.replace("bridge", "macvlan");
        fs::write(node.dir.path().join("net.d").join(file), &last).unwrap();
        node.installation.remove(false).unwrap();
        assert_eq!(node.files(), [file]);
        assert_eq!(node.read(file), last);
    }
}

#[test]
fn a_list_beside_the_single_plugin_stays() {
    let node = Node::new("10-net.conf", SINGLE);
    fs::write(node.dir.path().join("net.d/10-net.conflist"), CALICO).unwrap();
    let refused = node.installation.install().unwrap_err().to_string();
    assert!(refused.contains("remove one of the two"), "{refused}");
    assert_eq!(node.read("10-net.conflist"), CALICO);
}

#[test]
fn changes_by_others_are_repaired() {
    let node = Node::new("10-calico.conflist", CALICO);
    let mut keeper = Keeper::new(node.installation.clone());
    let file = node.dir.path().join("net.d/10-calico.conflist");
    keeper.turn();
    for _ in 0..2 {
        fs::write(&file, CALICO).unwrap();
        keeper.turn();
        assert_eq!(
            node.types("10-calico.conflist").last().unwrap(),
            "sidetrack-cni"
        );
    }
    // A configuration that sorts first.
    fs::write(node.dir.path().join("net.d/05-other.conflist"), CALICO).unwrap();
    keeper.turn();
    assert_eq!(
        node.types("05-other.conflist").last().unwrap(),
        "sidetrack-cni"
    );
    fs::remove_file(node.installation.binary()).unwrap();
    keeper.turn();
    assert!(node.installation.binary().exists());
    // Another build's entry.
    let text = node.read("05-other.conflist").replace("/run/s.sock", "/x");
    fs::write(node.dir.path().join("net.d/05-other.conflist"), text).unwrap();
    keeper.turn();
    assert!(node.read("05-other.conflist").contains("/run/s.sock"));
    assert_eq!(keeper.problem(), None);
    assert_eq!(node.installation.remove(false).unwrap().len(), 3);
}

#[test]
fn invalid_configurations_stay_unchanged() {
    for (text, part) in [
        ("", "no network configuration"),
        ("[]", "no network configuration"),
        ("{}", "no network configuration"),
        (r#"{"plugins": []}"#, "no network configuration"),
        (
            r#"{"cniVersion": "1.0.0", "plugins": [{"type": "x"}]}"#,
            "no network configuration",
        ),
        (r#"{"plugins": 7}"#, "no network configuration"),
        (
            r#"{"name": "n", "plugins": [{"type": "x"}]}"#,
            "cniVersion is 0.1.0",
        ),
        (
            r#"{"cniVersion": "1.0.0", "name": "n", "plugins": [{"type": "sidetrack-cni"}]}"#,
            "to run after",
        ),
    ] {
        let node = Node::new("10-x.conflist", text);
        let mut keeper = Keeper::new(node.installation.clone());
        keeper.turn();
        let problem = keeper.problem().unwrap();
        assert!(problem.contains(part), "{text}: {problem}");
        assert_eq!(node.read("10-x.conflist"), text);
    }
}

#[test]
fn entries_of_another_agent_stay() {
    let node = Node::new("10-calico.conflist", CALICO);
    let credentials = node.dir.path().join("net.d/sidetrack-cni.kubeconfig");
    fs::write(&credentials, "").unwrap();
    let theirs = CALICO.replace(
        r#"{"type": "portmap","#,
        r#"{"type": "sidetrack-cni", "socket": "/run/other.sock", "kubeconfig": "/etc/cni/net.d/sidetrack-cni.kubeconfig"},
    {"type": "portmap","#,
    );
    let other = node.dir.path().join("net.d/20-other.conflist");
    fs::write(&other, &theirs).unwrap();
    node.installation.install().unwrap();
    assert_eq!(
        node.types("10-calico.conflist").last().unwrap(),
        "sidetrack-cni"
    );
    let entries = || Entries::of_socket(&node.installation.conf_dir, Path::new("/run/s.sock"));
    let found = entries().unwrap();
    assert_eq!(found.credentials.as_ref(), Some(&credentials));
    assert!(found.needs_credentials && found.other == [other.clone()]);
    assert_eq!(node.installation.remove(false).unwrap().len(), 1);
    assert_eq!(node.types("10-calico.conflist"), ["calico", "portmap"]);
    assert_eq!(node.read("20-other.conflist"), theirs);
    assert!(credentials.exists() && node.installation.binary().exists());
    // The last one takes both along.
    fs::remove_file(&other).unwrap();
    node.installation.install().unwrap();
    let found = entries().unwrap();
    assert!(found.credentials.is_some() && !found.needs_credentials);
    assert_eq!(node.installation.remove(false).unwrap().len(), 3);
    assert!(!credentials.exists() && !node.installation.binary().exists());
}

#[test]
fn an_entry_that_nothing_maintains_is_a_problem() {
    let node = Node::new("10-calico.conflist", CALICO);
    let look = |socket: &str| {
        let on_node = Path::new("/etc/cni/net.d");
        let conf_dir = node.installation.conf_dir.clone();
        let mut found = Unmaintained::seen_at(on_node, conf_dir, Path::new(socket));
        found.turn();
        found
    };
    assert_eq!(look("/run/s.sock").problem(), None);
    node.installation.install().unwrap();
    let found = look("/run/s.sock");
    let problem = found.problem().unwrap();
    assert!(
        problem.contains("/etc/cni/net.d/10-calico.conflist"),
        "{problem}"
    );
    assert_eq!(look("/run/other.sock").problem(), None);
    assert_eq!(found.remove().unwrap().len(), 1);
    assert_eq!(look("/run/s.sock").problem(), None);
}
