//! What happens, in the order a newcomer wants to see it.

use std::{
    fs,
    path::Path,
    process::Output,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Duration,
};

use anyhow::{Context as _, Result, anyhow};
use lab::{
    agent::{PATIENCE, binary},
    command::{output, run, run_words},
};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde_json::Value;

use crate::{
    checks::Checks,
    environment::{DIR, DemoPod, Environment, HTTPBIN, NODE, SERVICE, UBUNTU, give, node},
    envoy::{LOG_FIELDS, Service, bootstrap},
};

const APP_UID: u32 = 1000;
const PROXY_UID: u32 = 1337;
const URL: &str = "http://httpbin-service/headers";

/// The article's access logs: sender, receiver.
const ARTICLE: [[(&str, &str); 5]; 2] = [
    [
        ("downstream_local_address", "10.109.118.31:80"),
        ("downstream_remote_address", "172.17.0.9:52178"),
        (
            "upstream_cluster",
            "outbound|80||httpbin-service.default.svc.cluster.local",
        ),
        ("upstream_host", "172.17.0.8:80"),
        ("upstream_local_address", "172.17.0.9:43422"),
    ],
    [
        ("downstream_local_address", "172.17.0.8:80"),
        ("downstream_remote_address", "172.17.0.9:43422"),
        (
            "upstream_cluster",
            "inbound|80|http|httpbin-service.default.svc.cluster.local",
        ),
        ("upstream_host", "127.0.0.1:80"),
        ("upstream_local_address", "127.0.0.1:55232"),
    ],
];

/// Plays the demo.
pub fn run(environment: &mut Environment, keep: bool) -> Result<Checks> {
    let mut checks = Checks::default();
    heading("Two pods on a bridge, the agent, two Envoys, httpbin");
    let mut agent = environment.spawn_agent()?;
    for pod in [UBUNTU, HTTPBIN] {
        write_manifest(environment, pod)?;
        wait_enrolled(environment, pod)?;
    }
    let sidecars = [
        start_sidecar(environment, UBUNTU)?,
        start_sidecar(environment, HTTPBIN)?,
    ];
    start_httpbin(environment)?;
    print!("{}", sidetrack(environment, &["pods"])?);

    let curl = curl_with_names(environment)?;
    access_logs(&mut checks, &curl)?;
    loaded(environment)?;
    heading("Checks");
    no_iptables(&mut checks)?;
    probes(environment, &mut checks)?;
    agent = crash(environment, agent, &mut checks)?;
    memory(agent, &mut checks)?;
    if !keep {
        sidecars_down(environment, sidecars, &mut checks)?;
    }
    Ok(checks)
}

fn heading(text: &str) {
    println!("\n== {text}");
}

fn sidetrack(environment: &Environment, words: &[&str]) -> Result<String> {
    let output = environment.places.output(words)?;
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// The pod as Istio's injector leaves it when its CNI is enabled.
fn write_manifest(environment: &Environment, pod: DemoPod) -> Result<()> {
    let (name, netns) = (pod.name, pod.netns());
    let text = format!(
        "apiVersion: v1
kind: Pod
metadata:
  name: {name}
  namespace: default
  labels: {{app: {name}, sidetrack.dev/interception: enabled}}
  annotations:
    sidetrack.dev/netns: /run/netns/{netns}
    sidecar.istio.io/interceptionMode: REDIRECT
    traffic.sidecar.istio.io/includeInboundPorts: \"*\"
    traffic.sidecar.istio.io/includeOutboundIPRanges: \"*\"
spec:
  containers:
  - {{name: {name}, image: {name}}}
  - name: istio-proxy
    image: docker.io/istio/proxyv2:1.28.0
    args: [proxy, sidecar]
    securityContext: {{runAsUser: {PROXY_UID}, runAsGroup: {PROXY_UID}}}
"
    );
    let aside = Path::new(DIR).join("manifest");
    fs::write(&aside, text)?;
    Ok(fs::rename(
        aside,
        environment.places.pods.join(format!("{name}.yaml")),
    )?)
}

fn wait_enrolled(environment: &Environment, pod: DemoPod) -> Result<()> {
    let name = format!("default/{}", pod.name);
    let output = environment
        .places
        .output(&["status", "--wait", &name, "--timeout", "10s"])?;
    if output.status.success() {
        return Ok(());
    }
    Err(anyhow!(
        "{}\n{}",
        String::from_utf8_lossy(&output.stderr).trim(),
        environment.places.log()
    ))
}

fn log_path(pod: DemoPod) -> String {
    format!("{DIR}/{}-access.log", pod.name)
}

fn start_sidecar(environment: &mut Environment, pod: DemoPod) -> Result<u32> {
    let service = Service {
        name: "httpbin-service",
        address: SERVICE,
        endpoint: HTTPBIN.ip,
    };
    let log = log_path(pod);
    fs::write(&log, "")?;
    give(Path::new(&log), PROXY_UID)?;
    let config = format!("{DIR}/{}-envoy.json", pod.name);
    fs::write(
        &config,
        serde_json::to_string_pretty(&bootstrap(pod.name, &service, &log))?,
    )?;
    let envoy = envoy_binary(&environment.tools)?;
    let words = [
        &envoy,
        "--config-path",
        &config,
        "--concurrency",
        "2",
        "--disable-hot-restart",
        "--log-level",
        "warning",
    ];
    let command = environment.in_pod(pod, PROXY_UID, &words);
    let pid = environment.spawn(command, &format!("{}-envoy.log", pod.name))?;
    let ready = [
        "curl",
        "-sf",
        "--max-time",
        "1",
        "http://127.0.0.1:15021/healthz/ready",
    ];
    environment.wait_for("Envoy does not get ready", || {
        Ok(environment.in_pod(pod, PROXY_UID, &ready).output()?)
    })?;
    Ok(pid)
}

/// The binary inside the installed wheel.
fn envoy_binary(tools: &Path) -> Result<String> {
    let lib = fs::read_dir(tools.join("lib")).context("no Envoy: run `cargo xtask setup`")?;
    lib.flatten()
        .map(|python| python.path().join("site-packages/envoy/_bin/envoy"))
        .find(|path| path.exists())
        .map(|path| path.to_string_lossy().into_owned())
        .context("the installed wheel has no envoy/_bin/envoy")
}

fn start_httpbin(environment: &mut Environment) -> Result<()> {
    let gunicorn = environment
        .tools
        .join("bin/gunicorn")
        .to_string_lossy()
        .into_owned();
    let words = [
        gunicorn.as_str(),
        "--bind",
        "0.0.0.0:80",
        "--worker-tmp-dir",
        "/dev/shm",
        "httpbin:app",
    ];
    let command = environment.in_pod(HTTPBIN, APP_UID, &words);
    environment.spawn(command, "httpbin.log")?;
    let ready = [
        "curl",
        "-sf",
        "--max-time",
        "1",
        "http://127.0.0.1:80/status/200",
    ];
    environment.wait_for("httpbin does not get ready", || {
        Ok(environment.in_pod(HTTPBIN, APP_UID, &ready).output()?)
    })
}

/// What curl said: trace on stderr, body on stdout, then the address it believes to talk to.
fn curl_with_names(environment: &Environment) -> Result<Output> {
    heading(&format!("As uid {APP_UID} in pod ubuntu: curl -sv {URL}"));
    let words = [
        "curl",
        "-sv",
        "--max-time",
        "10",
        "-w",
        "\npeer=%{remote_ip}:%{remote_port}",
        URL,
    ];
    let output = environment.in_pod(UBUNTU, APP_UID, &words).output()?;
    print!("{}", String::from_utf8_lossy(&output.stderr));
    println!("{}", String::from_utf8_lossy(&output.stdout).trim());
    Ok(output)
}

fn access_logs(checks: &mut Checks, curl: &Output) -> Result<()> {
    let logs = [last_log(UBUNTU)?, last_log(HTTPBIN)?];
    for ((pod, log), article) in [UBUNTU, HTTPBIN].iter().zip(&logs).zip(ARTICLE) {
        heading(&format!(
            "Access log of {}'s sidecar, beside the article's",
            pod.name
        ));
        for (field, _) in LOG_FIELDS {
            let theirs = article
                .iter()
                .find(|(name, _)| *name == field)
                .map(|(_, value)| *value);
            println!(
                "  {field:<27} {:<52} {}",
                text(log, field),
                theirs.unwrap_or_default()
            );
        }
    }
    heading("Checks of the request");
    let headers = String::from_utf8_lossy(&curl.stderr).to_lowercase();
    let body = String::from_utf8_lossy(&curl.stdout);
    let says = |part: &str| headers.contains(part).then_some(()).ok_or("it is missing");
    checks.record("the response is 200 OK", says("< http/1.1 200 ok"));
    checks.record("it has the header server: envoy", says("< server: envoy"));
    checks.record(
        "it has the header x-envoy-upstream-service-time",
        says("< x-envoy-upstream-service-time:"),
    );
    let peer = body
        .lines()
        .find_map(|line| line.strip_prefix("peer="))
        .unwrap_or_default();
    let service = format!("{}:{}", SERVICE.0, SERVICE.1);
    checks.equal("curl's peer", peer, &service);

    let [sent, received] = &logs;
    let ip = |log: &Value, field: &str| {
        text(log, field)
            .rsplit_once(':')
            .map_or("", |(ip, _)| ip)
            .to_owned()
    };
    let app = format!("{}:80", HTTPBIN.ip);
    checks.equal(
        "sender: downstream local",
        text(sent, "downstream_local_address"),
        &service,
    );
    checks.equal(
        "sender: downstream remote is the pod",
        &ip(sent, "downstream_remote_address"),
        UBUNTU.ip,
    );
    checks.equal("sender: upstream host", text(sent, "upstream_host"), &app);
    checks.equal(
        "sender: upstream local is the pod",
        &ip(sent, "upstream_local_address"),
        UBUNTU.ip,
    );
    checks.equal(
        "receiver: downstream local",
        text(received, "downstream_local_address"),
        &app,
    );
    checks.equal(
        "receiver: downstream remote, the sender's upstream local",
        text(received, "downstream_remote_address"),
        text(sent, "upstream_local_address"),
    );
    checks.equal(
        "receiver: upstream host",
        text(received, "upstream_host"),
        &app,
    );
    checks.equal(
        "receiver: upstream local",
        &ip(received, "upstream_local_address"),
        "127.0.0.6",
    );
    checks.equal(
        "both logged one request",
        text(received, "request_id"),
        text(sent, "request_id"),
    );
    Ok(())
}

fn text<'a>(log: &'a Value, field: &str) -> &'a str {
    log[field].as_str().unwrap_or("-")
}

/// The last line of a sidecar's access log; Envoy writes it a moment after the response.
fn last_log(pod: DemoPod) -> Result<Value> {
    for _ in 0..100 {
        let log = fs::read_to_string(log_path(pod))?;
        if let Some(line) = log.lines().last() {
            let mut log: Value = serde_json::from_str(line).context("parse the access log")?;
            if let Some(code) = log["response_code"].as_u64() {
                log["response_code"] = code.to_string().into();
            }
            return Ok(log);
        }
        thread::sleep(Duration::from_millis(100));
    }
    Err(anyhow!("the sidecar of {} logged nothing", pod.name))
}

fn loaded(environment: &Environment) -> Result<()> {
    let cgroup = environment.places.cgroup.to_string_lossy();
    heading(&format!("bpftool cgroup show {cgroup}"));
    print!("{}", run_words(&["bpftool", "cgroup", "show", &cgroup])?);
    heading("bpftool link show (of type netns: one sk_lookup per pod)");
    let links = run("bpftool link show")?;
    for line in links.lines().skip_while(|line| !line.contains(": netns")) {
        println!("{line}");
    }
    heading("sidetrack pods");
    print!("{}", sidetrack(environment, &["pods"])?);
    Ok(())
}

fn no_iptables(checks: &mut Checks) -> Result<()> {
    for pod in [UBUNTU, HTTPBIN] {
        let netns = pod.netns();
        let mut rules = String::new();
        for program in ["iptables-save", "ip6tables-save", "iptables-legacy-save"] {
            let saved = run_words(&["ip", "netns", "exec", &netns, program])?;
            rules.extend(
                saved
                    .lines()
                    .filter(|line| line.starts_with("-A"))
                    .map(|line| format!("{line}; ")),
            );
        }
        let none = rules.is_empty().then_some(()).ok_or(rules);
        checks.record(&format!("pod {} has no iptables rule", pod.name), none);
        let flows = run_words(&["ip", "netns", "exec", &netns, "conntrack", "-L"])?;
        let flows = flows.trim().to_owned();
        let none = flows.is_empty().then_some(()).ok_or(flows);
        checks.record(&format!("pod {} tracks no connection", pod.name), none);
    }
    Ok(())
}

/// As kubelet does it: from the node to the sidecar's health port.
fn probes(environment: &Environment, checks: &mut Checks) -> Result<()> {
    let inbound = || -> Result<u64> {
        let pod = environment
            .places
            .pod("default/httpbin")?
            .context("the pod's row")?;
        Ok(pod["connections"]["inbound_redirected"]
            .as_u64()
            .unwrap_or_default())
    };
    let before = inbound()?;
    let url = format!("http://{}:15021/healthz/ready", HTTPBIN.ip);
    let probe = output(&[
        "ip",
        "netns",
        "exec",
        &node(),
        "curl",
        "-sf",
        "--max-time",
        "2",
        &url,
    ])?;
    let after = inbound()?;
    let held = match (probe.status.success(), before == after) {
        (true, true) => Ok(()),
        (false, _) => Err(format!("no answer from {url}")),
        (_, false) => Err("it was redirected".to_owned()),
    };
    checks.record("a probe from the node reaches 15021 untouched", held);
    Ok(())
}

/// Kills the agent under traffic and starts it again.
fn crash(environment: &mut Environment, agent: u32, checks: &mut Checks) -> Result<u32> {
    let pods = |environment: &Environment| -> Result<Vec<String>> {
        let rows = environment.places.json(&["pods", "-o", "json"])?;
        let rows = rows.as_array().cloned().unwrap_or_default();
        let row = |row: &Value| format!("{} {} {}", row["name"], row["state"], row["netns"]);
        Ok(rows.iter().map(row).collect())
    };
    let before = pods(environment)?;
    let stop = AtomicBool::new(false);
    let requests = |environment: &Environment| {
        let (mut good, mut bad) = (0_u32, 0_u32);
        while !stop.load(Ordering::Relaxed) {
            let words = ["curl", "-sf", "-o", "/dev/null", "--max-time", "5", URL];
            match environment.in_pod(UBUNTU, APP_UID, &words).status() {
                Ok(status) if status.success() => good += 1,
                _ => bad += 1,
            }
        }
        (good, bad)
    };
    let (good, bad) = thread::scope(|scope| {
        let shared: &Environment = environment;
        let traffic = scope.spawn(|| requests(shared));
        thread::sleep(Duration::from_millis(300));
        let killed = kill(Pid::from_raw(agent as i32), Signal::SIGKILL);
        thread::sleep(Duration::from_secs(1));
        stop.store(true, Ordering::Relaxed);
        let counted = traffic
            .join()
            .map_err(|_| anyhow!("the thread that made requests panicked"));
        killed.context("kill the agent")?;
        counted
    })?;
    environment.end(agent, Signal::SIGKILL)?;
    let without = format!("{good} requests while the agent is killed (-9) and away, 0 failed");
    checks.record(
        &without,
        (good > 0 && bad == 0)
            .then_some(())
            .ok_or(format!("{bad} failed")),
    );

    stop.store(false, Ordering::Relaxed);
    let agent = environment.spawn_agent()?;
    let (good, bad) = thread::scope(|scope| {
        let traffic = scope.spawn(|| requests(environment));
        let enrolled = [UBUNTU, HTTPBIN].map(|pod| wait_enrolled(environment, pod));
        stop.store(true, Ordering::Relaxed);
        let counted = traffic
            .join()
            .map_err(|_| anyhow!("the thread that made requests panicked"))?;
        enrolled.into_iter().collect::<Result<()>>()?;
        anyhow::Ok(counted)
    })?;
    let during = format!("{good} requests while the agent takes over again, 0 failed");
    checks.record(
        &during,
        (good > 0 && bad == 0)
            .then_some(())
            .ok_or(format!("{bad} failed")),
    );
    let after = pods(environment)?;
    let same = (before == after)
        .then_some(())
        .ok_or(format!("{before:?} became {after:?}"));
    checks.record("the restarted agent shows the same pods", same);
    Ok(agent)
}

fn memory(agent: u32, checks: &mut Checks) -> Result<()> {
    const LIMIT_KIB: u64 = 20 * 1024;
    let status = procfs::process::Process::new(agent as i32)?.status()?;
    let resident = status.vmrss.context("VmRSS")?;
    let held = (resident < LIMIT_KIB)
        .then_some(())
        .ok_or("it is more than 20 MiB");
    checks.record(
        &format!("the agent has {:.1} MiB resident", resident as f64 / 1024.0),
        held,
    );
    Ok(())
}

/// curl's exit code for a connection that was refused.
const CURL_REFUSED: i32 = 7;

fn sidecars_down(
    environment: &mut Environment,
    sidecars: [u32; 2],
    checks: &mut Checks,
) -> Result<()> {
    for (pid, pod) in sidecars.into_iter().zip([UBUNTU, HTTPBIN]) {
        environment
            .end(pid, Signal::SIGKILL)
            .with_context(|| format!("stop {}'s sidecar", pod.name))?;
    }
    let patience = PATIENCE.as_secs().to_string();
    let refused = |code: Option<i32>| {
        (code == Some(CURL_REFUSED))
            .then_some(())
            .ok_or(format!("curl says {code:?}"))
    };
    let words = ["curl", "-s", "--max-time", &patience, URL];
    let outbound = environment.in_pod(UBUNTU, APP_UID, &words).output()?;
    checks.record(
        "sidecar stopped: outbound is refused",
        refused(outbound.status.code()),
    );
    let url = format!("http://{}:80/headers", HTTPBIN.ip);
    let words = [
        "ip",
        "netns",
        "exec",
        &node(),
        "curl",
        "-s",
        "--max-time",
        &patience,
        &url,
    ];
    let inbound = output(&words)?;
    checks.record(
        "sidecar stopped: inbound is refused",
        refused(inbound.status.code()),
    );
    Ok(())
}

/// For --keep.
pub fn what_to_try(environment: &Environment) {
    let binary = binary().map_or_else(
        |_| "sidetrack".into(),
        |path| path.canonicalize().unwrap_or(path),
    );
    let bpffs = environment.places.bpffs.display();
    let socket = environment.places.socket.display();
    let cgroup = environment.places.cgroup.display();
    let netns = UBUNTU.netns();
    println!(
        "
== It stays up. Try:

# a shell as the app in pod ubuntu, then in it: curl -sv {URL}
sh -c 'echo $$ > {cgroup}/ubuntu/cgroup.procs; exec ip netns exec {netns} setpriv --reuid {APP_UID} --regid {APP_UID} --clear-groups bash'

# what the agent knows, and what is loaded
{binary} status --bpffs {bpffs} --socket {socket}
{binary} pods --bpffs {bpffs} --socket {socket}
bpftool cgroup show {cgroup}
bpftool map dump pinned {bpffs}/sidetrack/v2/maps/POLICY_BY_ID

# the sidecars' access logs
tail -f {ubuntu} {httpbin}

# from the node ({NODE}) straight to the app: it passes httpbin's sidecar as well
ip netns exec {node} curl -s http://{ip}/headers

# take a pod out, put it back
mv {pods}/ubuntu.yaml /tmp/ && sleep 1 && mv /tmp/ubuntu.yaml {pods}/

# remove everything
cargo xtask demo --down",
        binary = binary.display(),
        ubuntu = log_path(UBUNTU),
        httpbin = log_path(HTTPBIN),
        node = node(),
        ip = HTTPBIN.ip,
        pods = environment.places.pods.display(),
    );
}
