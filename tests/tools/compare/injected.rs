//! Pods as the meshes' injectors leave them, each with the rules that its mesh's own program makes of it:
//! `DIR/*/NAME.yaml`, and beside it `NAME.v4` and `NAME.v6` with the lines of `iptables -S`.
//!
//! Every command and the agent have to read the pod alike: `rules`, `explain`, the selection, and the webhook's answer.

mod rules;
mod webhook;

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, ExitCode},
};

use anyhow::{Context as _, Result, bail, ensure};
use lab::{agent::binary, product::PodFacts};
use serde_json::{Value, json};
use sidetrack_common::addr::Family;
use sidetrack_policy::{
    Policy,
    mesh::{Enroll, Mesh},
    select::{Wanted, wanted},
};

use self::rules::Chains;

/// The pod's addresses, and one elsewhere.
const POD: [&str; 2] = ["10.244.7.2", "fd00::2"];
const ELSEWHERE: [&str; 2] = ["10.109.118.31", "fd99::31"];
/// An application.
const APP: (u32, u32) = (1000, 1000);

/// Compares all pods of a folder.
pub fn run(dir: &Path) -> Result<ExitCode> {
    let (mut passed, mut failed) = (0, 0);
    for manifest in manifests(dir)? {
        let has_rules = |extension: &&str| manifest.with_extension(extension).exists();
        ensure!(
            ["v4", "v6"].iter().any(has_rules),
            "{} has no rules beside it",
            manifest.display()
        );
        for (family, extension) in [(Family::V4, "v4"), (Family::V6, "v6")] {
            let expected = manifest.with_extension(extension);
            if !expected.exists() {
                continue;
            }
            let expected = fs::read_to_string(&expected).context("read the mesh's rules")?;
            let pod = Injected {
                manifest: &manifest,
                family,
                expected: Chains::parse(&expected),
            };
            match pod.check() {
                Ok(()) => passed += 1,
                Err(problem) => {
                    failed += 1;
                    let name = manifest.strip_prefix(dir).unwrap_or(&manifest);
                    println!("{} {extension}: {problem:#}", name.display());
                }
            }
        }
    }
    println!("{passed} passed, {failed} failed");
    Ok(match failed == 0 && passed > 0 {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    })
}

/// The manifests of the folders below this one. Rules without one are an error.
fn manifests(dir: &Path) -> Result<Vec<PathBuf>> {
    let entries = |dir: &Path| -> Result<Vec<PathBuf>> {
        let entries = fs::read_dir(dir).with_context(|| format!("read {}", dir.display()))?;
        Ok(entries
            .map(|entry| Ok(entry?.path()))
            .collect::<std::io::Result<_>>()?)
    };
    let mut manifests = Vec::new();
    for folder in entries(dir)?.iter().filter(|path| path.is_dir()) {
        for file in entries(folder)? {
            let manifest = file.with_extension("yaml");
            ensure!(
                manifest.exists(),
                "{} has no manifest beside it",
                file.display()
            );
            manifests.push(manifest);
        }
    }
    manifests.sort();
    manifests.dedup();
    Ok(manifests)
}

/// A pod with its mesh's rules of a family.
struct Injected<'a> {
    manifest: &'a Path,
    family: Family,
    expected: Chains,
}

impl Injected<'_> {
    fn check(&self) -> Result<()> {
        self.rules().context("rules")?;
        let pod = self.pod()?;
        let policy = selected(&pod).context("the agent's selection")?;
        self.same(&sidetrack_policy::rules::restore(&policy, self.family))
            .context("the selected pod's rules")?;
        self.explain(&policy).context("explain")?;
        webhook::check(&pod, &policy).context("the webhook")
    }

    /// Loads rules and compares what the kernel returns.
    fn same(&self, text: &str) -> Result<()> {
        let found = Chains::load(text, self.family)?;
        let differences = self.expected.differences(&found);
        ensure!(differences.is_empty(), "{}", differences.concat());
        Ok(())
    }

    fn sidetrack(&self, words: &[&str]) -> Result<String> {
        let [v4, v6] = POD.map(|ip| ["--pod-ip", ip]);
        let mut command = Command::new(binary()?);
        let (first, rest) = words.split_first().context("a command")?;
        command.arg(first).arg("--manifest").arg(self.manifest);
        command.args(["--mesh", "auto", "--enroll", "injected"]);
        let output = command.args(v4).args(v6).args(rest).output();
        let output = output.context("run sidetrack")?;
        if !output.status.success() {
            bail!("{}", String::from_utf8_lossy(&output.stderr).trim());
        }
        Ok(String::from_utf8(output.stdout)?)
    }

    fn rules(&self) -> Result<()> {
        let mut words = vec!["rules", "-o", "iptables"];
        if self.family == Family::V6 {
            words.push("-6");
        }
        self.same(&self.sidetrack(&words)?)
    }

    /// What `explain` says of some connections is what the mesh's own rules do with them.
    fn explain(&self, policy: &Policy) -> Result<()> {
        let nat = self.expected.nat()?;
        let at = usize::from(self.family == Family::V6);
        let (own, there) = (POD[at].parse()?, ELSEWHERE[at].parse()?);
        let proxy = policy.proxy_uids.first().map(|uid| {
            let gid = policy.proxy_gids.first();
            (*uid, gid.copied().unwrap_or(*uid))
        });
        for (owner, port) in [
            (Some(APP), 80),
            (Some(APP), 15020),
            (Some(APP), 9901),
            (proxy, 80),
        ] {
            let Some((uid, gid)) = owner else { continue };
            let expected = rules::outbound(&nat, (own, there), port, (uid, gid))?;
            let [uid, gid] = [uid, gid].map(|id| id.to_string());
            let words = ["outbound", "--uid", &uid, "--gid", &gid];
            self.verdict(&words, there, port, expected)?;
        }
        // In mode TPROXY table mangle decides.
        if policy.return_route().is_none() {
            for port in [80, 4191, 9001, 15020] {
                let expected = rules::inbound(&nat, (there, own), port)?;
                self.verdict(&["inbound"], own, port, expected)?;
            }
        }
        Ok(())
    }

    fn verdict(
        &self,
        words: &[&str],
        to: std::net::IpAddr,
        port: u16,
        expected: Option<u16>,
    ) -> Result<()> {
        let to = std::net::SocketAddr::new(to, port).to_string();
        let words = [&["explain", "-o", "json"], words, &["--dst", &to]].concat();
        let found: Value = serde_json::from_str(&self.sidetrack(&words)?)?;
        let redirected = found["port"].as_u64().map(|port| port as u16);
        let is_redirected = found["verdict"] == "redirect";
        ensure!(
            redirected == expected && is_redirected == expected.is_some(),
            "{}: {found}, and the mesh's rules: {expected:?}",
            words.join(" ")
        );
        Ok(())
    }

    /// The pod, or the one that a workload's template makes.
    fn pod(&self) -> Result<Value> {
        let text = fs::read_to_string(self.manifest).context("read the manifest")?;
        let object: Value = serde_saphyr::from_str(&text).context("read the manifest")?;
        let template = ["/spec/jobTemplate/spec/template", "/spec/template"];
        let template = template.iter().find_map(|path| object.pointer(path));
        let mut pod = template.unwrap_or(&object).clone();
        (pod["apiVersion"], pod["kind"]) = (json!("v1"), json!("Pod"));
        if pod["metadata"]["name"].is_null() {
            pod["metadata"]["name"] = object["metadata"]["name"].clone();
        }
        if pod["metadata"]["name"].is_null() {
            pod["metadata"]["name"] = json!("pod");
        }
        Ok(pod)
    }
}

/// The policy of a pod that the agent enrolls.
fn selected(pod: &Value) -> Result<Policy> {
    let facts: PodFacts = serde_json::from_value(pod.clone())?;
    match wanted(&facts, None, &Mesh::new(Enroll::Injected)) {
        Wanted::Enrolled(policy) => Ok(*policy),
        Wanted::Skipped(reason) => bail!("skipped: {reason}"),
        Wanted::Rejected(reason) => bail!("rejected: {reason}"),
    }
}
