//! Attacks by objects of the API server.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use anyhow::Result;
use lab::apiserver::Objects;
use serde_json::{Value, json};

use crate::{
    agent::Held,
    world::{GREEDY, QUIET, World},
};

/// Entries of the environment of a big pod: 1.1 MB as JSON.
const VARIABLES: usize = 40_000;
pub const EXCLUDED_PORTS: &str = "traffic.sidecar.istio.io/excludeOutboundPorts";
const INCLUDED_PORTS: &str = "traffic.sidecar.istio.io/includeOutboundPorts";
const KUMA_CONFIG: &str = "traffic.kuma.io/transparent-proxy-config";
/// Without it a pod with Kuma's sidecar is of no interest, and the configuration is not read.
const KUMA_INJECTED: &str = "kuma.io/sidecar-injected";
const EXCLUDED_RANGES: &str = "traffic.sidecar.istio.io/excludeOutboundIPRanges";

/// Something that continues in a thread until it is dropped.
struct Repeated {
    done: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Repeated {
    fn start(pause: Duration, mut act: impl FnMut() + Send + 'static) -> Self {
        let done = Arc::new(AtomicBool::new(false));
        let until = Arc::clone(&done);
        let thread = thread::spawn(move || {
            while !until.load(Ordering::Relaxed) {
                act();
                thread::sleep(pause);
            }
        });
        Self {
            done,
            thread: Some(thread),
        }
    }
}

impl Drop for Repeated {
    fn drop(&mut self) {
        self.done.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn big_pods(world: &mut World) -> Result<Vec<Value>> {
    let env: Vec<Value> = (0..VARIABLES)
        .map(|number| json!({"name": format!("N{number:05}"), "value": "x"}))
        .collect();
    (0..30)
        .map(|number| {
            let mut pod = world.object(QUIET, &format!("big-{number}"));
            // One has a sidecar with that environment, the others an app.
            let container = usize::from(number % 10 == 0);
            pod["spec"]["containers"][container]["env"] = env.clone().into();
            world.api.apply(pod.clone())?;
            world.remember(QUIET, &format!("big-{number}"));
            Ok(pod)
        })
        .collect()
}

pub fn big_pods_listed(world: &mut World) -> Result<Held> {
    big_pods(world)?;
    world.restart_agent()?;
    Ok(Box::new(()))
}

pub fn big_pods_watched(world: &mut World) -> Result<Held> {
    let pods = big_pods(world)?;
    // The next agent lists them. This one has to be sent each: what a new pod waits for would be the API server of the tests.
    world.restart_agent()?;
    let api = world.api.objects();
    let mut number = 0;
    Ok(Box::new(Repeated::start(
        Duration::from_millis(500),
        move || {
            number += 1;
            let mut pod = pods[number % pods.len()].clone();
            pod["metadata"]["labels"]["turn"] = number.to_string().into();
            let _ = api.apply(pod);
        },
    )))
}

/// Different ports for each `seed`.
fn ports(seed: usize) -> String {
    let ports = (0..10_000).map(|number| (number * 6 + seed % 6 + 1).to_string());
    ports.collect::<Vec<_>>().join(",")
}

fn ranges(seed: usize) -> String {
    let ranges =
        (0..10_000).map(|number| format!("{}.{}.{}.0/24", 20 + seed, number / 256, number % 256));
    ranges.collect::<Vec<_>>().join(",")
}

pub fn big_policies(world: &mut World) -> Result<Held> {
    for number in 0..24 {
        let annotations = json!({
            EXCLUDED_PORTS: ports(number), INCLUDED_PORTS: ports(number + 1), EXCLUDED_RANGES: ranges(number),
        });
        world.idle_pod(GREEDY, &format!("lists-{number}"), |pod| {
            pod["metadata"]["annotations"] = annotations;
        })?;
    }
    world.restart_agent()?;
    Ok(Box::new(()))
}

pub fn restless_policy(world: &mut World) -> Result<Held> {
    let lists = |seed: usize| json!({EXCLUDED_PORTS: ports(seed), EXCLUDED_RANGES: ranges(seed)});
    restless(
        world,
        (0..6).map(lists).collect(),
        |_| {},
        |pod| pod["state"] == "enrolled",
    )
}

/// Kuma's annotation with a few lines that stand for a million values.
pub fn restless_aliases(world: &mut World) -> Result<Held> {
    restless_kuma(world, aliases, "aliases")
}

/// The same with as many values as it may have.
pub fn restless_yaml(world: &mut World) -> Result<Held> {
    let text = |seed: usize| format!("a: [{seed}{}]", ",1".repeat(120_000));
    restless_kuma(world, text, "more YAML")
}

/// With this configuration, by seed, for which the agent rejects the pod in these words.
fn restless_kuma(
    world: &mut World,
    config: fn(usize) -> String,
    rejected: &'static str,
) -> Result<Held> {
    let variants = (0..6).map(|seed| json!({KUMA_INJECTED: "true", KUMA_CONFIG: config(seed)}));
    restless(
        world,
        variants.collect(),
        |pod| pod["spec"]["containers"][1]["name"] = "kuma-sidecar".into(),
        |pod| {
            let reason = pod["reason"].to_string();
            pod["state"] == "rejected" && reason.contains(rejected)
        },
    )
}

/// YAML whose aliases stand for a million values.
fn aliases(seed: usize) -> String {
    let names: Vec<char> = ('a'..='g').collect();
    let first = format!("a: &a [{seed}{}]\n", ",1".repeat(9));
    let others = names.windows(2).map(|pair| {
        let items = vec![format!("*{}", pair[0]); 8].join(",");
        format!("{}: &{} [{items}]\n", pair[1], pair[1])
    });
    first + &others.collect::<String>()
}

/// A pod whose annotations change every 10 ms, once the agent has read the first.
fn restless(
    world: &mut World,
    variants: Vec<Value>,
    edit: impl Fn(&mut Value),
    is_read: impl Fn(&Value) -> bool,
) -> Result<Held> {
    world.idle_pod(GREEDY, "restless", |pod| {
        edit(pod);
        pod["metadata"]["annotations"] = variants[0].clone();
    })?;
    world
        .places()
        .wait_pod("greedy/restless", |pod| pod.is_some_and(&is_read))?;
    let api = world.api.objects();
    let mut number = 0;
    Ok(Box::new(Repeated::start(
        Duration::from_millis(10),
        move || {
            number += 1;
            let _ = change(&api, &variants[number % variants.len()]);
        },
    )))
}

fn change(api: &Objects, annotations: &Value) -> Result<()> {
    api.edit("Pod", GREEDY, "restless", |pod| {
        pod["metadata"]["annotations"] = annotations.clone();
    })
}

pub fn many_pods(world: &mut World) -> Result<Held> {
    for number in 0..1000 {
        let name = format!("absent-{number}");
        let pod = world.object(GREEDY, &name);
        world.api.apply(pod)?;
        world.remember(GREEDY, &name);
    }
    Ok(Box::new(()))
}
