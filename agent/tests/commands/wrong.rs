//! Wrong input: the exit code, and a piece of the sentence that says what is wrong. 2 is wrong usage, 1 a failure.

use std::{
    fs,
    io::{Read as _, Write as _},
    os::unix::net::UnixListener,
    path::Path,
    thread,
};

use crate::run::{Ended, command, run};

/// A line of words: in it `DIR` is a directory of the test, see [`Files`].
type Case = (&'static str, i32, &'static str);

/// Flags that contradict each other, have no effect, or have values that cannot be meant.
const USAGE: &[Case] = &[
    // Contradictions, and what has no effect.
    (
        "agent --pods-dir DIR/empty --node-name a",
        2,
        "'--node-name <NAME>'",
    ),
    (
        "agent --pods-dir DIR/empty --daemonset a/b",
        2,
        "cannot be used with",
    ),
    (
        "agent --pods-dir DIR/empty --remove-taint",
        2,
        "cannot be used with",
    ),
    (
        "agent --pods-dir DIR/empty --metrics-per-pod 3",
        2,
        "--metrics-addr",
    ),
    (
        "agent --pods-dir DIR/empty --cni-timeout 5s",
        2,
        "about the CNI plugin",
    ),
    (
        "agent --pods-dir DIR/empty --cni-exclude-namespaces a",
        2,
        "about the CNI plugin",
    ),
    (
        "agent --pods-dir DIR/empty --cni-node-conf-dir DIR",
        2,
        "of use only with --daemonset",
    ),
    (
        "agent --pods-dir DIR/empty --cni-remove",
        2,
        "--cni-conf-dir",
    ),
    ("agent", 2, "pass --node-name NAME or --pods-dir"),
    ("status -n a", 2, "of use only with --wait"),
    ("status --timeout 5s", 2, "--wait <NAMESPACE/POD>"),
    ("status --wait a/b -n c", 2, "not in namespace c"),
    (
        "trace --refused --verdict untouched",
        2,
        "--refused and --verdict untouched exclude",
    ),
    (
        "trace --refused --verdict redirect",
        2,
        "--refused and --verdict redirect exclude",
    ),
    ("trace --refused --rule out-all", 2, "refuses no connection"),
    ("trace --rule out-all --verdict refuse", 2, "is redirect"),
    (
        "trace --rule in-all --direction outbound",
        2,
        "about inbound connections",
    ),
    ("trace -n a b/c", 2, "not in namespace a"),
    ("top -o json", 2, "pass --once with -o"),
    ("cleanup --dry-run --stay", 2, "cannot be used with"),
    ("install-cni --keep-binary", 2, "--remove"),
    (
        "install-cni --remove --cni-timeout 5s",
        2,
        "cannot be used with",
    ),
    (
        "install-cni --remove --cni-exclude-namespaces a",
        2,
        "cannot be used with",
    ),
    ("rules -n a", 2, "of use only with the name of a pod"),
    (
        "rules --manifest DIR/pod.yaml -n other",
        2,
        "of use only with the name of a pod",
    ),
    (
        "rules a/b --default excludeOutboundPorts=80",
        2,
        "--manifest FILE",
    ),
    ("rules", 2, "name a pod"),
    (
        "explain a outbound --dst fd00::9:80",
        2,
        "write [fd00::9]:80",
    ),
    (
        "explain a outbound --src x --dst 10.0.0.1:80",
        2,
        "write an address",
    ),
    ("rules a --manifest - --dns-server x", 2, "write an address"),
    (
        "explain a outbound --uid root --dst 10.0.0.1:80",
        2,
        "write the number of a user",
    ),
    (
        "explain a outbound --gid 4294967295 --dst 10.0.0.1:80",
        2,
        "write the number of a user",
    ),
    // Numbers and times.
    ("trace --port 0", 2, "not in 1..=65535"),
    ("trace --port 65536", 2, "not in 1..=65535"),
    ("trace --count 0", 2, "0 is not in 1"),
    ("trace --duration 0", 2, "longer than 0"),
    ("trace --duration 5parsecs", 2, "write a duration"),
    (
        "trace --duration 99999999999999999999s",
        2,
        "write a duration",
    ),
    (
        "trace --process abcdefghijklmnopqrstuvwxyz",
        2,
        "1 to 15 bytes",
    ),
    ("trace --process=", 2, "1 to 15 bytes"),
    ("trace --address 10.0.0.0/99", 2, "an address or a range"),
    ("trace --rule nope", 2, "no such rule"),
    ("top --once --interval 0", 2, "between 100ms and 1h"),
    ("top --once --interval 10d", 2, "between 100ms and 1h"),
    ("connections a --limit 0", 2, "between 1 and 10000"),
    (
        "connections a --limit 99999999999",
        2,
        "between 1 and 10000",
    ),
    (
        "status --wait a/b --timeout 99999999999999999999",
        2,
        "write a duration",
    ),
    ("validate --timeout 0", 2, "between 1s and 3600s"),
    ("install-cni --cni-timeout 0", 2, "between 1s and 110s"),
    ("install-cni --cni-timeout 1.5s", 2, "whole seconds"),
    (
        "agent --pods-dir DIR/empty --metrics-addr 127.0.0.1:99999",
        2,
        "socket address",
    ),
    // Names.
    ("why ''", 2, "write POD or NAMESPACE/POD"),
    ("why 'a b'", 2, "write POD or NAMESPACE/POD"),
    ("why 'a b/c'", 2, "write a namespace"),
    ("why a/b/c", 2, "write POD or NAMESPACE/POD"),
    ("why a -n 'x y'", 2, "write a namespace"),
    ("trace -n 'x y'", 2, "write a namespace"),
    ("top --once -n 'x y'", 2, "write a namespace"),
    ("top --once -n ''", 2, "write a namespace"),
    ("status --wait A/B", 2, "write a namespace"),
    ("agent --node-name A_B", 2, "`kubectl get nodes`"),
    ("agent --node-name ''", 2, "`kubectl get nodes`"),
    (
        "agent --node-name a --daemonset 'a b/c'",
        2,
        "write NAMESPACE/NAME",
    ),
    (
        "install-cni --cni-exclude-namespaces 'a b'",
        2,
        "write a namespace",
    ),
    (
        "install-cni --socket relative.sock",
        2,
        "write an absolute path",
    ),
    ("completions klingon", 2, "possible values: bash"),
    ("probe alive", 2, "possible values: live, ready"),
    ("nonsense", 2, "unrecognized subcommand"),
    ("status extra", 2, "unexpected argument"),
    ("status --socket ''", 2, "a value is required"),
    // Defaults.
    (
        "agent --pods-dir DIR/empty --default excludeOutboundPorts=mysql",
        2,
        "is not a port",
    ),
    (
        "agent --pods-dir DIR/empty --default x=1",
        2,
        "is not a default",
    ),
    (
        "agent --pods-dir DIR/empty --default outboundPort=15006",
        2,
        "are both 15006",
    ),
    (
        "rules --manifest DIR/pod.yaml --default outboundPort=",
        2,
        "is not a port",
    ),
    (
        "rules --manifest DIR/pod.yaml --default proxyUid=-1",
        2,
        "is not a numeric user",
    ),
    (
        "rules --manifest DIR/pod.yaml --default inboundPort=15001",
        2,
        "are both 15001",
    ),
    (
        "rules --manifest DIR/pod.yaml --default dialect=2",
        2,
        "is not a dialect",
    ),
    // Connections that cannot be.
    (
        "explain --manifest DIR/pod.yaml inbound --dst 8.8.8.8:80",
        2,
        "no address of pod shop/web",
    ),
    (
        "explain --manifest DIR/pod.yaml inbound --dst [fd00::9]:80",
        2,
        "no address of pod shop/web",
    ),
    (
        "explain --manifest DIR/pod.yaml inbound --dst 127.0.0.1:80",
        2,
        "from the pod alone",
    ),
    (
        "explain --manifest DIR/pod.yaml inbound --dst 10.1.1.1:80 --src fd00::7",
        2,
        "different families",
    ),
    (
        "explain --manifest DIR/pod.yaml outbound --dst 1.2.3.4:80 --src fd00::1",
        2,
        "different families",
    ),
    (
        "explain --manifest DIR/pod.yaml inbound --dst 10.1.1.1:80 --iface ''",
        2,
        "1 to 15 bytes",
    ),
    (
        "explain --manifest DIR/pod.yaml inbound --dst 10.1.1.1:80 --iface 'eth 0'",
        2,
        "1 to 15 bytes",
    ),
    (
        "explain --manifest DIR/pod.yaml outbound --dst 1.2.3.4:0",
        2,
        "is not a port",
    ),
    (
        "explain --manifest DIR/pod.yaml outbound --dst 1.2.3.4",
        2,
        "write IP:PORT",
    ),
    (
        "explain --manifest DIR/pod.yaml outbound --dst 'a b:80'",
        2,
        "neither an address nor a host name",
    ),
    (
        "explain --manifest DIR/pod.yaml outbound --dst 1.2.3.4:80 --uid 4294967295",
        2,
        "write the number of a user",
    ),
    (
        "explain --manifest DIR/pod.yaml outbound --dst 1.2.3.4:80 --uid root",
        2,
        "--uid",
    ),
    (
        "explain --manifest DIR/pod.yaml sideways",
        2,
        "requires a subcommand",
    ),
    (
        "rules --manifest DIR/pod.yaml --pod-ip 0.0.0.0",
        2,
        "no pod has this address",
    ),
    (
        "rules --manifest DIR/pod.yaml --pod-ip 224.0.0.1",
        2,
        "no pod has this address",
    ),
    (
        "rules --manifest DIR/pod.yaml --pod-ip 1.2.3",
        2,
        "write an address",
    ),
];

/// Files that are not what they should be.
const FILES: &[Case] = &[
    ("rules --manifest DIR/pod.yaml x/y", 1, "there are shop/web"),
    (
        "rules --manifest DIR/pod.yaml shop/wep",
        1,
        "did you mean shop/web?",
    ),
    ("rules --manifest DIR/missing", 1, "No such file"),
    ("rules --manifest DIR", 1, "not a regular file"),
    ("rules --manifest DIR/malformed.yaml", 1, "not valid YAML"),
    ("rules --manifest DIR/yaml.json", 1, "not valid JSON"),
    (
        "rules --manifest DIR/empty.yaml",
        1,
        "no pod and no workload",
    ),
    (
        "rules --manifest DIR/service.yaml",
        1,
        "no pod and no workload",
    ),
    ("rules --manifest DIR/number.yaml", 1, "it has no kind"),
    ("rules --manifest DIR/binary.yaml", 1, "UTF-8"),
    ("rules --manifest DIR/deep.yaml", 1, "recursion limit"),
    ("rules --manifest DIR/nameless.yaml", 1, "no metadata.name"),
    ("rules --manifest DIR/twice.yaml", 1, "more than once"),
    (
        "rules --manifest DIR/pod.yaml --config DIR/missing",
        1,
        "No such file",
    ),
    (
        "rules --manifest DIR/pod.yaml --config DIR",
        1,
        "not a regular file",
    ),
    (
        "rules --manifest DIR/pod.yaml --config DIR/ports.yaml",
        1,
        "are both 15006",
    ),
    ("agent --pods-dir DIR/pod.yaml", 1, "is not a directory"),
    ("agent --pods-dir DIR/missing", 1, "--pods-dir"),
    (
        "install-cni --cni-bin-dir DIR/pod.yaml --cni-conf-dir DIR",
        1,
        "--cni-bin-dir",
    ),
    ("man DIR/pod.yaml", 1, "DIR/pod.yaml"),
    (
        "pods --socket DIR/pod.yaml --bpffs DIR",
        1,
        "is not a socket",
    ),
    ("probe live --socket DIR", 1, "is not a socket"),
    (
        "pods --socket DIR/none.sock --bpffs DIR",
        1,
        "the pinned maps cannot be read",
    ),
    (
        "cleanup --bpffs DIR --socket DIR/none.sock",
        1,
        "is not a bpffs",
    ),
    (
        "status --wait a/b --timeout 0 --socket DIR/none.sock",
        1,
        "no agent answers on DIR/none.sock",
    ),
];

/// What is in the directory.
const POD: &str = "kind: Pod\nmetadata: {name: web, namespace: shop}\n\
    spec: {containers: [{name: istio-proxy}]}\n\
    status: {podIPs: [{ip: 10.1.1.1}, {ip: 'fd00::1'}]}\n";

struct Files(tempfile::TempDir);

impl Files {
    fn new() -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let write = |name: &str, content: &[u8]| {
            fs::write(dir.path().join(name), content).expect("a file");
        };
        fs::create_dir(dir.path().join("empty")).expect("a directory");
        for (name, text) in [
            ("pod.yaml", POD),
            ("yaml.json", POD),
            ("malformed.yaml", "kind: ["),
            ("empty.yaml", ""),
            ("service.yaml", "kind: Service\nmetadata: {name: a}\n"),
            ("number.yaml", "42\n"),
            (
                "nameless.yaml",
                "kind: Pod\nspec: {containers: [{name: istio-proxy}]}\n",
            ),
            ("twice.yaml", &format!("{POD}---\n{POD}")),
            ("deep.yaml", &"[".repeat(20_000)),
            ("ports.yaml", "defaults: {outboundPort: 15006}\n"),
        ] {
            write(name, text.as_bytes());
        }
        write("binary.yaml", &[0xff, 0xfe, 0]);
        Self(dir)
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    /// Runs a line, in which apostrophes enclose a word with spaces, or an empty one.
    fn run(&self, line: &str) -> Ended {
        let line = line.replace("DIR", &self.path().to_string_lossy());
        let mut words: Vec<String> = Vec::new();
        for (at, part) in line.split('\'').enumerate() {
            if at % 2 == 1 {
                words.push(part.to_owned());
            } else {
                words.extend(part.split_whitespace().map(str::to_owned));
            }
        }
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        command(&words)
            .env_remove("NODE_NAME")
            .output()
            .expect("it ends")
            .into()
    }
}

fn each(cases: &[Case]) {
    let files = Files::new();
    let mut wrong = Vec::new();
    for (line, code, part) in cases {
        let ended = files.run(line);
        let part = part.replace("DIR", &files.path().to_string_lossy());
        if ended.code != Some(*code) || !ended.stderr.contains(&part) || !ended.stdout.is_empty() {
            wrong.push(format!("{line}: {ended:?}, and not {code} with {part:?}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn usage() {
    each(USAGE);
}

#[test]
fn files() {
    each(FILES);
}

#[test]
fn a_variable_for_the_node_contradicts_no_flag() {
    let with = |words: &[&str], name: &str| -> Ended {
        let mut command = command(words);
        command
            .env("NODE_NAME", name)
            .output()
            .expect("it ends")
            .into()
    };
    let directory = ["agent", "--pods-dir", "/nowhere"];
    assert!(with(&directory, "worker").error(1).contains("/nowhere"));
    let bad = with(&["agent"], "a b");
    assert!(bad.error(2).contains("NODE_NAME is \"a b\""), "{bad:?}");
}

/// What listens there, and what the commands say.
#[test]
fn sockets_of_others() {
    let files = Files::new();
    let ok = |body: &str| {
        let length = body.len();
        format!("HTTP/1.1 200 OK\r\ncontent-length: {length}\r\n\r\n{body}")
    };
    let missing = "HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n".to_owned();
    for (name, answer, part) in [
        (
            "ssh",
            "SSH-2.0-OpenSSH\r\n".to_owned(),
            "does not answer as an agent",
        ),
        ("html", ok("<html>"), "of another version?"),
        (
            "future",
            ok(r#"[{"state": "hovering"}]"#),
            "of another version?",
        ),
        ("older", missing, "of another version?"),
    ] {
        let path = files.path().join(name);
        let listener = UnixListener::bind(&path).expect("a socket");
        thread::spawn(move || {
            for mut stream in listener.incoming().flatten() {
                let _ = stream.read(&mut [0; 4096]);
                let _ = stream.write_all(answer.as_bytes());
            }
        });
        let socket = path.to_string_lossy();
        for words in [
            &["pods"][..],
            &["rules", "a/b"],
            &["why", "a/b"],
            &["status", "--wait", "a/b", "--timeout", "0"],
        ] {
            let ended = run(&[words, &["--socket", &socket, "--bpffs", "/nowhere"]].concat());
            let error = ended.error(1);
            assert!(error.contains(part), "{name}, {words:?}: {error}");
            assert!(!error.contains("no agent answers"), "{name}: {error}");
        }
        let status = run(&["status", "--socket", &socket, "--bpffs", "/nowhere"]);
        let said = (status.code, status.stdout);
        assert!(
            said.0 == Some(1) && said.1.contains("agent     unknown"),
            "{name}: {said:?}"
        );
        if ["ssh", "older"].contains(&name) {
            for words in [&["probe", "live"][..], &["trace", "--duration", "1s"]] {
                let ended = run(&[words, &["--socket", &socket]].concat());
                assert!(
                    ended.error(1).contains(part),
                    "{name}, {words:?}: {ended:?}"
                );
            }
        }
    }
}
