use std::{
    fs,
    os::unix::fs::{PermissionsExt as _, symlink},
    path::Path,
};

use tempfile::TempDir;

use super::{
    Entries, Entry, Installation, Mount, Unmaintained, Work, conflist::NetworkConfig,
    keeper::Keeper,
};
use crate::cni::credentials::Credentials;

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

impl Work {
    /// What was done, if nothing was left undone.
    fn all_done(self) -> Vec<String> {
        assert!(self.problem.is_none(), "{:#}", self.problem.unwrap());
        self.done
    }
}

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
            mounts: Vec::new(),
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
    assert_eq!(node.installation.install().all_done().len(), 2);
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
    assert!(node.installation.install().all_done().is_empty(), "twice");
    assert_eq!(node.files().len(), 2, "no temporary file remains");

    assert_eq!(node.installation.remove(false).all_done().len(), 2);
    assert_eq!(node.types("10-calico.conflist"), ["calico", "portmap"]);
    assert!(!binary.exists());
    assert!(node.installation.remove(false).all_done().is_empty());
}

#[test]
fn a_single_plugin_becomes_a_list_and_is_restored() {
    let node = Node::new("10-net.conf", SINGLE);
    node.installation.install().all_done();
    assert_eq!(
        node.files(),
        ["10-net.conf.sidetrack-saved", "10-net.conflist"]
    );
    assert_eq!(node.types("10-net.conflist"), ["bridge", "sidetrack-cni"]);
    assert!(node.installation.install().all_done().is_empty());
    node.installation.remove(true).all_done();
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
        node.installation.remove(false).all_done();
        assert_eq!(node.files(), [file]);
        assert_eq!(node.read(file), last);
    }
}

#[test]
fn a_list_beside_the_single_plugin_stays() {
    let node = Node::new("10-net.conf", SINGLE);
    fs::write(node.dir.path().join("net.d/10-net.conflist"), CALICO).unwrap();
    let refused = node.installation.install().problem.unwrap().to_string();
    assert!(refused.contains("remove one of the two"), "{refused}");
    assert_eq!(node.read("10-net.conflist"), CALICO);
}

/// The network was upgraded, and has a list of its own now.
#[test]
fn a_list_that_the_network_wrote_itself_stays() {
    for file in ["10-net.conf", "10-net.json"] {
        let node = Node::new(file, SINGLE);
        node.installation.install().all_done();
        fs::write(node.dir.path().join("net.d/10-net.conflist"), CALICO).unwrap();
        node.installation.install().all_done();
        node.installation.remove(true).all_done();
        assert_eq!(node.files(), ["10-net.conflist"]);
        assert_eq!(node.types("10-net.conflist"), ["calico", "portmap"]);
    }
}

/// The entry is in the next one, which some runtimes use; others start pods without it.
#[test]
fn what_the_runtime_may_use_and_this_program_cannot_is_a_problem() {
    let write = |text: &'static str| move |path: &Path| fs::write(path, text).unwrap();
    let long = |path: &Path| fs::File::create(path).unwrap().set_len(1 << 40).unwrap();
    let link = |path: &Path| symlink("/nonexistent/file", path).unwrap();
    type Make<'a> = &'a dyn Fn(&Path);
    let cases: [(Make<'_>, &str); 4] = [
        (
            &write(r#"{"cniVersion": "1.1.0", "name": "a"}"#),
            "has no plugins in it",
        ),
        (
            &write(r#"{"name": "a", "plugins": []}"#),
            "has no plugins in it",
        ),
        (&long, "has more than"),
        (&link, "is a link to a file that this program does not see"),
    ];
    for (make, part) in cases {
        let node = Node::new("10-calico.conflist", CALICO);
        let first = node.dir.path().join("net.d/05-a.conflist");
        make(&first);
        // The node's root has what the link leads to.
        let (root, seen) = (node.dir.path().join("root"), node.dir.path().join("net.d"));
        for dir in ["root/nonexistent", "root/conf"] {
            fs::create_dir_all(node.dir.path().join(dir)).unwrap();
        }
        fs::write(root.join("nonexistent/file"), CALICO).unwrap();
        let mut installation = node.installation.clone();
        installation.mounts.push(Mount {
            seen,
            on_node: "/conf".into(),
            root: root.clone(),
        });
        let on_node = root.join("conf/05-a.conflist");
        symlink("/nonexistent/file", on_node).unwrap();
        let mut keeper = Keeper::new(installation);
        for _ in 0..2 {
            keeper.turn();
            let problem = keeper.problem().unwrap();
            let is_named = problem.contains("05-a.conflist") && problem.contains(part);
            assert!(
                is_named && problem.contains("remove that file"),
                "{problem}"
            );
            assert!(!keeper.is_in_place());
        }
        assert_eq!(node.types("10-calico.conflist").len(), 3);
        fs::remove_file(first).unwrap();
        keeper.turn();
        keeper.turn();
        assert!(keeper.is_in_place() && keeper.problem().is_none());
    }
}

/// Also on the node: some runtimes skip it, others have no network.
#[test]
fn a_link_that_leads_nowhere_is_skipped() {
    let node = Node::new("10-calico.conflist", CALICO);
    let first = node.dir.path().join("net.d/05-a.conflist");
    symlink("/nonexistent/file", first).unwrap();
    node.installation.install().all_done();
    let mut within = node.installation.clone();
    within.mounts.push(Mount {
        seen: within.conf_dir.clone(),
        on_node: within.conf_dir.clone(),
        root: "/proc/self/root".into(),
    });
    assert!(within.install().all_done().is_empty());
}

#[test]
fn a_version_of_several_is_enough() {
    let several = CALICO.replace(
        r#""cniVersion": "0.3.1""#,
        r#""cniVersions": ["1.1.0", "9.0.0"]"#,
    );
    let node = Node::new("10-calico.conflist", &several);
    node.installation.install().all_done();
    assert_eq!(node.types("10-calico.conflist").len(), 3);
    assert!(
        node.read("10-calico.conflist")
            .contains(r#"["1.1.0", "9.0.0"]"#)
    );
    let other = Node::new("10-calico.conflist", &several.replace(r#""1.1.0", "#, ""));
    let problem = other.installation.install().problem.unwrap();
    assert!(
        format!("{problem:#}").contains("cniVersion is 9.0.0, which"),
        "{problem:#}"
    );
}

/// Its disk is full, or no one may write there.
#[test]
fn a_binary_that_cannot_be_replaced_keeps_the_entry_maintained() {
    let node = Node::new("10-calico.conflist", CALICO);
    node.installation.install().all_done();
    let binary = node.installation.binary();
    fs::write(&binary, "an earlier one").unwrap();
    // What the new one is written to first.
    let temporary = sidetrack_base::files::temporary(&binary);
    fs::create_dir(&temporary).unwrap();
    fs::write(node.dir.path().join("net.d/10-calico.conflist"), CALICO).unwrap();
    let Work { done, problem } = node.installation.install();
    assert_eq!(done.len(), 1, "{done:?}");
    assert_eq!(node.types("10-calico.conflist").len(), 3);
    assert!(format!("{:#}", problem.unwrap()).contains("sidetrack-cni"));
    // Without any binary the entry would keep pods from starting.
    fs::remove_file(&binary).unwrap();
    fs::write(node.dir.path().join("net.d/10-calico.conflist"), CALICO).unwrap();
    assert!(node.installation.install().problem.is_some());
    assert_eq!(node.types("10-calico.conflist").len(), 2);
}

#[test]
fn a_file_that_cannot_be_read_keeps_no_other_from_being_cleaned() {
    let node = Node::new("10-calico.conflist", CALICO);
    node.installation.install().all_done();
    let unread = node.dir.path().join("net.d/05-x.conf");
    fs::File::create(&unread).unwrap().set_len(1 << 40).unwrap();
    let link = node.dir.path().join("net.d/06-x.conf");
    symlink("/nonexistent", link).unwrap();
    let Work { done, problem } = node.installation.remove(false);
    assert_eq!(done.len(), 1, "{done:?}");
    assert!(format!("{:#}", problem.unwrap()).contains("05-x.conf"));
    assert_eq!(node.types("10-calico.conflist"), ["calico", "portmap"]);
    assert!(node.installation.binary().exists(), "it may be needed");
    fs::remove_file(unread).unwrap();
    assert_eq!(node.installation.remove(false).all_done().len(), 1);
    assert!(!node.installation.binary().exists());
}

/// The API server issued another one, as after a rotation of its keys.
#[test]
fn another_token_is_noticed() {
    let mut node = Node::new("10-calico.conflist", CALICO);
    let secret = node.dir.path().join("secret");
    fs::create_dir(&secret).unwrap();
    fs::write(secret.join("token"), "one").unwrap();
    fs::write(secret.join("ca.crt"), "authority").unwrap();
    node.installation.credentials = Some(Credentials {
        secret: secret.clone(),
    });
    let keeper = Keeper::new(node.installation.clone());
    let before = keeper.file_states();
    fs::write(secret.join("token"), "another").unwrap();
    assert_ne!(keeper.file_states(), before);
}

#[test]
fn another_directory_on_the_node_needs_another_agent() {
    let mut node = Node::new("10-calico.conflist", CALICO);
    let dir = node.dir.path().to_owned();
    let (first, second) = (dir.join("first"), dir.join("second"));
    let (link, elsewhere) = (dir.join("current"), dir.join("net.d"));
    for path in [&first, &second] {
        fs::create_dir(path).unwrap();
    }
    symlink(&first, &link).unwrap();
    let mount = |seen: &Path, on_node: &Path| Mount {
        seen: seen.to_owned(),
        on_node: on_node.to_owned(),
        root: "/proc/self/root".into(),
    };
    // The second one was never the node's, and the third is not known.
    node.installation.mounts = vec![
        mount(&first, &link),
        mount(&elsewhere, &second),
        mount(&elsewhere, Path::new("/nonexistent")),
    ];
    let mut keeper = Keeper::new(node.installation);
    assert_eq!(keeper.obsolete(), None);
    fs::remove_file(&link).unwrap();
    assert_eq!(keeper.obsolete(), None, "not known");
    symlink(&second, &link).unwrap();
    let reason = keeper.obsolete().unwrap();
    assert!(reason.contains(&*link.to_string_lossy()), "{reason}");
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
    assert_eq!(node.installation.remove(false).all_done().len(), 3);
}

/// Cilium with `cni.exclusive` puts its file back at once.
#[test]
fn who_undoes_every_repair_is_a_problem() {
    let node = Node::new("10-calico.conflist", CALICO);
    let mut keeper = Keeper::new(node.installation.clone());
    let file = node.dir.path().join("net.d/10-calico.conflist");
    keeper.turn();
    for _ in 1..10 {
        assert_eq!(keeper.problem(), None);
        fs::write(&file, CALICO).unwrap();
        keeper.turn();
    }
    let problem = keeper.problem().unwrap_or_default();
    assert!(problem.contains("cni.exclusive=false"), "{problem}");
    assert!(!keeper.is_in_place());
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
    node.installation.install().all_done();
    assert_eq!(
        node.types("10-calico.conflist").last().unwrap(),
        "sidetrack-cni"
    );
    let entries = || Entries::of_socket(&node.installation.conf_dir, Path::new("/run/s.sock"));
    let found = entries().unwrap();
    assert_eq!(found.credentials.as_ref(), Some(&credentials));
    assert!(found.needs_credentials && found.other == [other.clone()]);
    assert_eq!(node.installation.remove(false).all_done().len(), 1);
    assert_eq!(node.types("10-calico.conflist"), ["calico", "portmap"]);
    assert_eq!(node.read("20-other.conflist"), theirs);
    assert!(credentials.exists() && node.installation.binary().exists());
    // The last one takes both along.
    fs::remove_file(&other).unwrap();
    node.installation.install().all_done();
    let found = entries().unwrap();
    assert!(found.credentials.is_some() && !found.needs_credentials);
    assert_eq!(node.installation.remove(false).all_done().len(), 3);
    assert!(!credentials.exists() && !node.installation.binary().exists());
}

#[test]
fn an_entry_that_nothing_maintains_is_a_problem() {
    let node = Node::new("10-calico.conflist", CALICO);
    // A link that is absolute on the node.
    let conf_dir = &node.installation.conf_dir;
    let root = conf_dir.parent().unwrap();
    fs::create_dir_all(root.join("etc/cni")).unwrap();
    let to = Path::new("/").join(conf_dir.file_name().unwrap());
    symlink(to, root.join("etc/cni/net.d")).unwrap();
    let look = |socket: &str| {
        let on_node = Path::new("/etc/cni/net.d");
        let mut found = Unmaintained::seen_from(root, on_node, Path::new(socket));
        found.turn();
        found
    };
    assert_eq!(look("/run/s.sock").problem(), None);
    node.installation.install().all_done();
    let found = look("/run/s.sock");
    let problem = found.problem().unwrap();
    assert!(
        problem.contains("/etc/cni/net.d/10-calico.conflist"),
        "{problem}"
    );
    assert_eq!(look("/run/other.sock").problem(), None);
    assert_eq!(found.remove().all_done().len(), 1);
    assert_eq!(look("/run/s.sock").problem(), None);
}

#[test]
fn what_another_program_writes_meanwhile_is_kept() {
    let node = Node::new("10-calico.conflist", CALICO);
    let path = node.installation.conf_dir.join("10-calico.conflist");
    let mut config = NetworkConfig::parse(&path, CALICO.as_bytes()).unwrap();
    config.put(&node.installation.entry).unwrap();
    let theirs = CALICO.replace("portmap", "bandwidth");
    fs::write(&path, &theirs).unwrap();
    let refused = config.write(&path).expect_err("it has changed");
    let refused = format!("{refused:#}");
    assert!(refused.contains("has changed it meanwhile"), "{refused}");
    assert_eq!(node.read("10-calico.conflist"), theirs);
    node.installation.install().all_done();
    assert_eq!(
        node.types("10-calico.conflist"),
        ["calico", "bandwidth", "sidetrack-cni"]
    );
}
