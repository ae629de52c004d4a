//! Wrong input: the exit code, and a piece of the sentence that says what is wrong. 2 is wrong usage, 1 a failure.

use std::{
    fs,
    io::{Read as _, Write as _},
    os::unix::net::UnixListener,
    path::Path,
    thread,
};

use crate::run::{Ended, command, run};

// Of each line: a command, in which `DIR` is a directory of the test, see [`Files`], and a part of what it says.

/// Flags that contradict each other, have no effect, or have values that cannot be meant.
const USAGE: &str = "
# Contradictions, and what has no effect.
agent --pods-dir DIR/empty --node-name a => '--node-name <NAME>'
agent --pods-dir DIR/empty --daemonset a/b => cannot be used with
agent --pods-dir DIR/empty --remove-taint => cannot be used with
agent --pods-dir DIR/empty --metrics-per-pod 3 => --metrics-addr
agent --pods-dir DIR/empty --cni-timeout 5s => about the CNI plugin
agent --pods-dir DIR/empty --cni-exclude-namespaces a => about the CNI plugin
agent --pods-dir DIR/empty --cni-node-conf-dir DIR => of use only with --own-pod, --daemonset
agent --node-name a --cni-bin-dir DIR --cni-conf-dir DIR --cni-credentials DIR => of use only with --own-pod or --daemonset
agent --node-name a --own-pod mesh/sidetrack => no DaemonSet makes a pod with the name of mesh/sidetrack
agent --node-name a --own-pod mesh/sidetrack-x7k2p --daemonset mesh/sidetrack => cannot be used with
agent --pods-dir DIR/empty --cni-remove => --cni-conf-dir
agent => pass --node-name NAME or --pods-dir
status -n a => of use only with --wait
status --timeout 5s => --wait <NAMESPACE/POD>
status --wait a/b -n c => not in namespace c
trace --refused --verdict untouched => --refused and --verdict untouched exclude
trace --refused --verdict redirect => --refused and --verdict redirect exclude
trace --refused --rule out-all => refuses no connection
trace --rule out-all --verdict refuse => is redirect
trace --rule in-all --direction outbound => about inbound connections
trace -n a b/c => not in namespace a
top -o json => pass --once with -o
cleanup --dry-run --stay => cannot be used with
install-cni --keep-binary => --remove
install-cni --remove --cni-timeout 5s => cannot be used with
install-cni --remove --cni-exclude-namespaces a => cannot be used with
rules -n a => of use only with the name of a pod
rules --manifest DIR/pod.yaml -n other => of use only with the name of a pod
rules a/b --default excludeOutboundPorts=80 => --manifest FILE
rules => name a pod
explain a outbound --dst fd00::9:80 => write [fd00::9]:80
explain a outbound --src x --dst 10.0.0.1:80 => write an address
rules a --manifest - --dns-server x => write an address
explain a outbound --uid root --dst 10.0.0.1:80 => write the number of a user
explain a outbound --gid 4294967295 --dst 10.0.0.1:80 => write the number of a user
# Numbers and times.
trace --port 0 => not in 1..=65535
trace --port 65536 => not in 1..=65535
trace --count 0 => 0 is not in 1
trace --duration 0 => greater than 0
trace --duration 5parsecs => write a duration
trace --duration 99999999999999999999s => write a duration
trace --process abcdefghijklmnopqrstuvwxyz => 1 to 15 bytes
trace --process= => 1 to 15 bytes
trace --address 10.0.0.0/99 => an address or a range
trace --rule nope => no such rule
top --once --interval 0 => between 100ms and 1h
top --once --interval 10d => between 100ms and 1h
connections a --limit 0 => between 1 and 10000
connections a --limit 99999999999 => between 1 and 10000
status --wait a/b --timeout 99999999999999999999 => write a duration
validate --timeout 0 => between 1s and 3600s
install-cni --cni-timeout 0 => between 1s and 110s
install-cni --cni-timeout 1.5s => whole seconds
agent --pods-dir DIR/empty --metrics-addr 127.0.0.1:99999 => socket address
# Names.
why '' => write POD or NAMESPACE/POD
why 'a b' => write POD or NAMESPACE/POD
why 'a b/c' => write a namespace
why a/b/c => write POD or NAMESPACE/POD
why a -n 'x y' => write a namespace
trace -n 'x y' => write a namespace
top --once -n 'x y' => write a namespace
top --once -n '' => write a namespace
status --wait A/B => write a namespace
agent --node-name A_B => `kubectl get nodes`
agent --node-name '' => `kubectl get nodes`
agent --node-name a --daemonset 'a b/c' => write NAMESPACE/NAME
install-cni --cni-exclude-namespaces 'a b' => write a namespace
install-cni --socket relative.sock => write an absolute path
completions klingon => possible values: bash
probe alive => possible values: live, ready
nonsense => unrecognized subcommand
status extra => unexpected argument
status --socket '' => a value is required
# Defaults.
agent --pods-dir DIR/empty --default excludeOutboundPorts=mysql => is not a port
agent --pods-dir DIR/empty --default x=1 => is not a default
agent --pods-dir DIR/empty --default outboundPort=15006 => are both 15006
rules --manifest DIR/pod.yaml --default outboundPort= => is not a port
rules --manifest DIR/pod.yaml --default proxyUid=-1 => is not a numeric user
rules --manifest DIR/pod.yaml --default inboundPort=15001 => are both 15001
rules --manifest DIR/pod.yaml --default dialect=2 => is not a dialect
# Connections that cannot be.
explain --manifest DIR/pod.yaml inbound --dst 8.8.8.8:80 => no address of pod shop/web
explain --manifest DIR/pod.yaml inbound --dst [fd00::9]:80 => no address of pod shop/web
explain --manifest DIR/pod.yaml inbound --dst 127.0.0.1:80 => from the pod alone
explain --manifest DIR/pod.yaml inbound --dst 10.1.1.1:80 --src fd00::7 => different families
explain --manifest DIR/pod.yaml outbound --dst 1.2.3.4:80 --src fd00::1 => different families
explain --manifest DIR/pod.yaml inbound --dst 10.1.1.1:80 --iface '' => 1 to 15 bytes
explain --manifest DIR/pod.yaml inbound --dst 10.1.1.1:80 --iface 'eth 0' => 1 to 15 bytes
explain --manifest DIR/pod.yaml outbound --dst 1.2.3.4:0 => is not a port
explain --manifest DIR/pod.yaml outbound --dst 1.2.3.4 => write IP:PORT
explain --manifest DIR/pod.yaml outbound --dst 'a b:80' => neither an address nor a host name
explain --manifest DIR/pod.yaml outbound --dst 1.2.3.4:80 --uid 4294967295 => write the number of a user
explain --manifest DIR/pod.yaml outbound --dst 1.2.3.4:80 --uid root => --uid
explain --manifest DIR/pod.yaml sideways => requires a subcommand
rules --manifest DIR/pod.yaml --pod-ip 0.0.0.0 => no pod has this address
rules --manifest DIR/pod.yaml --pod-ip 224.0.0.1 => no pod has this address
rules --manifest DIR/pod.yaml --pod-ip 1.2.3 => write an address
";

/// Files that are not what they should be.
const FILES: &str = "
rules --manifest DIR/pod.yaml x/y => there are shop/web
rules --manifest DIR/pod.yaml shop/wep => did you mean shop/web?
rules --manifest DIR/missing => No such file
rules --manifest DIR => not a regular file
rules --manifest DIR/malformed.yaml => not valid YAML
rules --manifest DIR/yaml.json => not valid JSON
rules --manifest DIR/empty.yaml => no pod and no workload
rules --manifest DIR/service.yaml => no pod and no workload
rules --manifest DIR/number.yaml => it has no kind
rules --manifest DIR/binary.yaml => UTF-8
rules --manifest DIR/deep.yaml => recursion limit
rules --manifest DIR/nameless.yaml => no metadata.name
rules --manifest DIR/twice.yaml => more than once
rules --manifest DIR/pod.yaml --config DIR/missing => No such file
rules --manifest DIR/pod.yaml --config DIR => not a regular file
rules --manifest DIR/pod.yaml --config DIR/ports.yaml => are both 15006
agent --pods-dir DIR/pod.yaml => is not a directory
agent --pods-dir DIR/missing => --pods-dir
install-cni --cni-bin-dir DIR/pod.yaml --cni-conf-dir DIR => --cni-bin-dir
man DIR/pod.yaml => DIR/pod.yaml
pods --socket DIR/pod.yaml --bpffs DIR => is not a socket
probe live --socket DIR => is not a socket
pods --socket DIR/none.sock --bpffs DIR => the pinned maps cannot be read
cleanup --bpffs DIR --socket DIR/none.sock => is not a bpffs
status --wait a/b --timeout 0 --socket DIR/none.sock => no agent answers on DIR/none.sock
";

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

fn each(cases: &str, code: i32) {
    let files = Files::new();
    let mut wrong = Vec::new();
    let cases = cases.lines().filter(|line| !line.is_empty());
    for case in cases.filter(|line| !line.starts_with('#')) {
        let (line, part) = case.split_once(" => ").expect("a line and a part");
        let ended = files.run(line);
        let part = part.replace("DIR", &files.path().to_string_lossy());
        if ended.code != Some(code) || !ended.stderr.contains(&part) || !ended.stdout.is_empty() {
            wrong.push(format!("{line}: {ended:?}, and not {code} with {part:?}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn usage() {
    each(USAGE, 2);
}

#[test]
fn files() {
    each(FILES, 1);
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
