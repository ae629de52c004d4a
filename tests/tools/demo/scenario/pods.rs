//! The two pods of the demo, their sidecars and the server.

use std::{fs, path::Path};

use anyhow::{Result, anyhow};
use lab::{
    envoy::{self, Service, bootstrap, transparent_bootstrap},
    injected::LABEL,
    network::Manifest,
};
use serde_json::json;

use super::{APP_UID, PROXY_UID};
use crate::environment::{DIR, DemoPod, Environment, HTTPBIN, SERVICE, give};

/// How the sidecar gets and makes connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    Redirect,
    Tproxy,
}

impl Mode {
    const fn name(self) -> &'static str {
        match self {
            Self::Redirect => "REDIRECT",
            Self::Tproxy => "TPROXY",
        }
    }

    /// User and group of the sidecar. In mode TPROXY it needs privileges.
    const fn owner(self) -> (u32, u32) {
        match self {
            Self::Redirect => (PROXY_UID, PROXY_UID),
            Self::Tproxy => (0, PROXY_UID),
        }
    }
}

/// The pod as Istio's injector leaves it when its CNI is enabled.
pub fn write_manifest(environment: &Environment, pod: DemoPod, mode: Mode) -> Result<()> {
    let (uid, gid) = mode.owner();
    let manifest = Manifest::new(pod.name, &environment.net(pod)?)
        .dual_stack(false)
        .labeled("app", pod.name)
        .labeled(LABEL, "enabled")
        .annotated(&[
            ("sidecar.istio.io/interceptionMode", mode.name()),
            ("traffic.sidecar.istio.io/includeInboundPorts", "*"),
            ("traffic.sidecar.istio.io/includeOutboundIPRanges", "*"),
        ])
        .edited(|object| {
            object["metadata"]["namespace"] = "default".into();
            let containers = &mut object["spec"]["containers"];
            containers[0] = json!({"name": pod.name, "image": pod.name});
            containers[1]["args"] = json!(["proxy", "sidecar"]);
            containers[1]["securityContext"] = json!({"runAsUser": uid, "runAsGroup": gid});
        });
    let aside = Path::new(DIR).join("manifest");
    fs::write(&aside, manifest.to_string())?;
    let path = environment.places.pods.join(format!("{}.yaml", pod.name));
    Ok(fs::rename(aside, path)?)
}

pub fn wait_enrolled(environment: &Environment, pod: DemoPod) -> Result<()> {
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

pub fn log_path(pod: DemoPod) -> String {
    format!("{DIR}/{}-access.log", pod.name)
}

pub fn start_sidecar(environment: &mut Environment, pod: DemoPod, mode: Mode) -> Result<u32> {
    let service = Service {
        name: "httpbin-service",
        address: SERVICE,
        endpoint: HTTPBIN.ip,
    };
    let log = log_path(pod);
    fs::write(&log, "")?;
    give(Path::new(&log), PROXY_UID)?;
    let config = format!("{DIR}/{}-envoy.json", pod.name);
    let content = match mode {
        Mode::Redirect => bootstrap(pod.name, &service, &log),
        Mode::Tproxy => transparent_bootstrap(pod.name, &service, &log),
    };
    fs::write(&config, serde_json::to_string_pretty(&content)?)?;
    let envoy = envoy::binary(&environment.tools)?;
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
    let command = environment.in_pod_as(pod, mode.owner(), &words);
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

pub fn start_httpbin(environment: &mut Environment) -> Result<()> {
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
