//! 250 pods of several Istio versions on one node.

use std::{
    collections::HashMap,
    fs, thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use lab::{
    agent::{Agent, Places},
    apiserver::ApiServer,
    command::Process,
    injected::{LABEL, injected, namespace},
    network::Lab,
    wait::eventually,
};
use serde_json::{Value, json};

use crate::fixture::{nothing_remains, start_agent};

/// The pods that the articles show, by the version of Istio that injected them, and a native sidecar;
/// with the dialect that evaluates each.
fn of_every_version(number: usize, name: &str, uid: &str) -> (Value, &'static str) {
    let flags = |more: &[&'static str]| {
        let mut words = vec![
            "-p", "15001", "-u", "1337", "-m", "REDIRECT", "-i", "*", "-x", "",
        ];
        words.extend(more);
        words
    };
    let init = |image: &str, field: &str, words: Vec<&str>| {
        json!([{
            "name": "istio-init", "image": image, field: words,
            "securityContext": {"capabilities": {"add": ["NET_ADMIN"]}},
        }])
    };
    let mut pod = injected(name, uid);
    let spec = &mut pod["spec"];
    let (tag, dialect) = match number % 5 {
        0 => ("1.12.7", "1.8"),
        1 => {
            let words = flags(&["-b", "8000", "-d", "15020"]);
            spec["initContainers"] = init("docker.io/istio/proxy_init:1.1.3", "args", words);
            ("1.1.3", "1.1")
        }
        2 => {
            let mut words = flags(&["-z", "15006", "-b", "*", "-d", "15090,15020"]);
            words.insert(0, "istio-iptables");
            spec["initContainers"] = init("docker.io/istio/proxyv2:1.5.0", "command", words);
            ("1.5.0", "1.5")
        }
        3 => {
            let mut words = flags(&["-z", "15006", "-b", "*", "-d", "15090,15021,15020"]);
            words.insert(0, "istio-iptables");
            spec["initContainers"] = init("docker.io/istio/proxyv2:1.8.1", "args", words);
            ("1.8.1", "1.8")
        }
        _ => {
            spec["containers"][1]["restartPolicy"] = json!("Always");
            let sidecar = spec["containers"][1].take();
            spec["containers"] = json!([spec["containers"][0].take()]);
            spec["initContainers"] = json!([sidecar]);
            spec["initContainers"][0]["image"] = json!("docker.io/istio/proxyv2:1.28.0");
            return (pod, "current");
        }
    };
    spec["containers"][1]["image"] = json!(format!("docker.io/istio/proxyv2:{tag}"));
    (pod, dialect)
}

/// Longest time for anything that concerns all pods. It takes about two seconds.
const LONGEST: Duration = Duration::from_secs(20);
/// Processor time of an idle agent, in percent. The dev profile's build needs about 1.
const MAX_IDLE_CPU: f64 = 10.0;
/// With 240 pods that wait for their first process, and containers of another that start. The dev profile's build needs 13 in
/// the first minute, and 104 where each cgroup that is made is a reason to look for all of them.
const MAX_WAITING_CPU: f64 = 50.0;

kernel_test!(pods_250);
fn pods_250() -> Result<()> {
    const PODS: usize = 250;
    let mut lab = Lab::new()?;
    let names = lab.bare_namespaces(PODS)?;
    let api = ApiServer::start(lab.dir())?;
    api.apply(namespace("shop", Some("enabled")))?;
    let (idle, dialects) = start_pods(&lab, &api, &names)?;
    let start_of_agent = Instant::now();
    let agent = start_agent(&lab, &api)?;
    let places = lab.places();
    enrolled(places, PODS)?;
    let took = start_of_agent.elapsed();
    let (resident, _) = agent.memory()?;
    for row in places
        .json(&["pods", "-o", "json"])?
        .as_array()
        .into_iter()
        .flatten()
    {
        let name = row["name"].as_str().unwrap_or_default();
        let dialect = dialects.get(name).context("a pod of ours")?;
        ensure!(row["policy"]["dialect"] == *dialect, "{row}");
    }
    let idle_cpu = idle_cpu(&agent)?;

    let edit = |label: Option<&str>| {
        api.edit("Namespace", "", "shop", |namespace| {
            namespace["metadata"]["labels"] =
                label.map_or(json!({}), |label| json!({LABEL: label}));
        })
    };
    edit(None)?;
    let off = enrolled(places, 0)?;
    edit(Some("enabled"))?;
    let on = enrolled(places, PODS)?;
    api.edit("Pod", "shop", "web-7", |pod| {
        pod["metadata"]["annotations"]["traffic.sidecar.istio.io/excludeOutboundPorts"] =
            json!("80");
    })?;
    let annotated = places.wait_pod("shop/web-7", |pod| {
        pod.is_some_and(|pod| pod["policy"]["excluded_outbound_ports"] == json!([80]))
    })?;
    drop(idle);
    for number in 0..PODS {
        api.delete("Pod", "shop", &format!("web-{number}"))?;
    }
    let deleted = enrolled(places, 0)?;
    println!(
        "{PODS} pods: enrolled {took:.2?} after the agent's start; labels off {off:.2?}, on {on:.2?}; annotation {annotated:.2?}; all deleted {deleted:.2?}; resident {resident} KiB; idle CPU {idle_cpu:.2} %"
    );
    // Wide bounds: a busy machine is no failure, ten times as long is.
    for (what, took) in [
        ("enrolled", took),
        ("labels off", off),
        ("labels on", on),
        ("annotation", annotated),
        ("deleted", deleted),
    ] {
        ensure!(took < LONGEST, "{what}: after {took:?}");
    }
    ensure!(resident < 60 * 1024, "{resident} KiB");
    ensure!(idle_cpu < MAX_IDLE_CPU, "{idle_cpu:.2} % when idle");
    nothing_remains(places)
}

kernel_test!(pods_that_wait_cost_little);
/// They have cgroups and no process, as when their sandboxes cannot be made. The containers of another pod start meanwhile,
/// ten a second: that is no reason to look for those that wait.
fn pods_that_wait_cost_little() -> Result<()> {
    const PODS: usize = 240;
    let lab = Lab::new()?;
    let api = ApiServer::start(lab.dir())?;
    api.apply(namespace("shop", Some("enabled")))?;
    let agent = start_agent(&lab, &api)?;
    for number in 0..PODS {
        let uid = lab.uid(number);
        lab.kubelet_cgroup(&uid)?;
        api.apply(injected(&format!("web-{number}"), &uid))?;
    }
    eventually(LONGEST, || {
        let status = lab.places().json(&["status", "-o", "json"])?;
        ensure!(status["pods"]["waiting"] == PODS, "{}", status["pods"]);
        Ok(())
    })?;
    let restless = lab.kubelet_cgroup(&lab.uid(PODS))?;
    let container = restless.join("container");
    let cpu = thread::scope(|scope| -> Result<f64> {
        let measured = scope.spawn(|| idle_cpu(&agent));
        while !measured.is_finished() {
            fs::create_dir(&container)?;
            fs::remove_dir(&container)?;
            thread::sleep(Duration::from_millis(100));
        }
        measured.join().expect("it does not panic")
    })?;
    println!("{PODS} waiting pods: {cpu:.2} % of a processor");
    ensure!(cpu < MAX_WAITING_CPU, "{cpu:.2} %");
    Ok(())
}

/// A process in every namespace, and its pod in the API; the processes, and the dialect of each pod.
fn start_pods(
    lab: &Lab,
    api: &ApiServer,
    names: &[String],
) -> Result<(Vec<Process>, HashMap<String, &'static str>)> {
    let mut idle = Vec::new();
    let mut dialects = HashMap::new();
    for (number, netns) in names.iter().enumerate() {
        idle.push(lab.idle_process(netns, &lab.uid(number))?);
        let (pod, dialect) = of_every_version(number, &format!("web-{number}"), &lab.uid(number));
        dialects.insert(format!("web-{number}"), dialect);
        api.apply(pod)?;
    }
    Ok((idle, dialects))
}

/// Waits until this many pods are enrolled; how long that took.
fn enrolled(places: &Places, wanted: usize) -> Result<Duration> {
    let start = Instant::now();
    eventually(LONGEST, || {
        let status = places.json(&["status", "-o", "json"])?;
        ensure!(status["pods"]["enrolled"] == wanted, "{}", status["pods"]);
        Ok(start.elapsed())
    })
}

/// The median of the processor time per second, in percent.
fn idle_cpu(agent: &Agent) -> Result<f64> {
    // Searches for listeners, which these pods do not have, fall into some of these seconds.
    let mut seconds = Vec::new();
    for _ in 0..9 {
        let before = agent.cpu_time()?;
        thread::sleep(Duration::from_secs(1));
        seconds.push(agent.cpu_time()?.saturating_sub(before));
    }
    seconds.sort();
    Ok(seconds[seconds.len() / 2].as_secs_f64() * 100.0)
}
