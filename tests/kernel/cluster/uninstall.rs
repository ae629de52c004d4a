//! An upgrade keeps interception, an uninstall removes it.

use std::{fs, path::Path, time::Duration};

use anyhow::{Result, ensure};
use lab::{
    agent::{Agent, Extra, Places},
    apiserver::{ApiServer, Request},
    hanging::HangingFs,
    injected::{injected, namespace},
    network::Lab,
    runtime::Runtime,
    sidecar,
    wait::eventually,
};
use nix::sys::signal::Signal;
use serde_json::{Value, json};

use super::wait_for;

/// The agent's DaemonSet: its namespace and name.
const DAEMONSET: (&str, &str) = ("sidetrack-system", "sidetrack");
/// The arguments that name it.
const OF_DAEMONSET: [&str; 2] = ["--daemonset", "sidetrack-system/sidetrack"];

/// An agent of that DaemonSet.
fn of_daemonset(api: &ApiServer) -> Extra<'_> {
    Extra {
        api: Some(api),
        arguments: &OF_DAEMONSET,
        ..Extra::default()
    }
}

/// An API server with the agent's DaemonSet and a namespace `shop` that is opted in.
fn api_server(lab: &Lab) -> Result<ApiServer> {
    let api = ApiServer::start(lab.dir())?;
    api.apply(namespace("shop", Some("enabled")))?;
    create(&api, "DaemonSet")?;
    create(&api, "ConfigMap")?;
    Ok(api)
}

/// Creates an object that sidetrack is installed with.
fn create(api: &ApiServer, kind: &str) -> Result<()> {
    api.apply(object(kind))
}

fn object(kind: &str) -> Value {
    let (namespace, name) = DAEMONSET;
    json!({
        "kind": kind, "apiVersion": if kind == "DaemonSet" { "apps/v1" } else { "v1" },
        "metadata": {"name": name, "namespace": namespace, "uid": format!("uid-{kind}")},
    })
}

fn delete(api: &ApiServer, kind: &str) -> Result<()> {
    api.delete(kind, DAEMONSET.0, DAEMONSET.1)
}

/// The objects go one after the other.
fn uninstall(api: &ApiServer) -> Result<()> {
    delete(api, "DaemonSet")?;
    delete(api, "ConfigMap")
}

/// Waits until the agent has both objects: it watches them, so it has listed them.
fn wait_watched(api: &ApiServer) -> Result<()> {
    let watches = |group, resource| {
        let verb = "watch";
        let watch = Request {
            verb,
            group,
            resource,
        };
        api.requests().contains(&watch)
    };
    wait_for(|| Ok(watches("apps", "daemonsets") && watches("", "configmaps")))
}

fn wait_deletion_noticed(places: &Places) -> Result<()> {
    wait_for(|| Ok(places.log().contains("sidetrack is uninstalled")))
}

kernel_test!(an_uninstall_leaves_nothing);
fn an_uninstall_leaves_nothing() -> Result<()> {
    let mut lab = Lab::new()?;
    let api = api_server(&lab)?;
    let pod = lab.pod("app", 2)?.under_kubelet(&lab, &lab.uid(1))?;
    let _sidecar = sidecar::start(&pod, &[])?;
    api.apply(injected("web", &lab.uid(1)))?;
    let extra = of_daemonset(&api);
    let pins = lab.places().bpffs.join("sidetrack");
    // An upgrade: the pod of the DaemonSet goes, the DaemonSet stays.
    let mut agent = Agent::start_with(lab.places(), &extra)?;
    lab.places().wait_enrolled("shop/web")?;
    agent.end(Signal::SIGTERM)?;
    ensure!(pins.exists(), "an upgrade leaves interception in place");
    api.forget_requests();
    let mut agent = Agent::start_with(lab.places(), &extra)?;
    lab.places().wait_enrolled("shop/web")?;
    wait_watched(&api)?;
    uninstall(&api)?;
    wait_deletion_noticed(lab.places())?;
    agent.end(Signal::SIGTERM)?;
    ensure!(!pins.exists(), "{}", lab.places().log());
    Ok(())
}

kernel_test!(an_uninstall_during_an_outage_leaves_nothing);
/// The deletion is in no event: the API server has forgotten it when the agent can ask again.
fn an_uninstall_during_an_outage_leaves_nothing() -> Result<()> {
    let lab = Lab::new()?;
    let api = api_server(&lab)?;
    let extra = of_daemonset(&api);
    let mut agent = Agent::start_with(lab.places(), &extra)?;
    wait_watched(&api)?;
    let problems = || lab.places().problems();
    let is_unwatched = || Ok(problems()?.contains("watch the agent's DaemonSet"));
    // A new list with the DaemonSet in it is no deletion.
    api.down();
    wait_for(is_unwatched)?;
    api.compact();
    api.up();
    wait_for(|| Ok(problems()? == "[]"))?;
    ensure!(!lab.places().log().contains("is uninstalled"));

    api.down();
    wait_for(is_unwatched)?;
    uninstall(&api)?;
    api.compact();
    api.up();
    wait_deletion_noticed(lab.places())?;
    agent.end(Signal::SIGTERM)?;
    let pins = lab.places().bpffs.join("sidetrack");
    ensure!(!pins.exists(), "{}", lab.places().log());
    Ok(())
}

kernel_test!(an_uninstall_removes_the_entry_while_the_disk_of_plugins_hangs);
fn an_uninstall_removes_the_entry_while_the_disk_of_plugins_hangs() -> Result<()> {
    let lab = Lab::new()?;
    let api = api_server(&lab)?;
    let runtime = Runtime::new(&lab)?;
    let (bin, conf) = (runtime.bin(), runtime.conf());
    let mut arguments = OF_DAEMONSET.to_vec();
    arguments.extend(["--cni-bin-dir", &bin, "--cni-conf-dir", &conf]);
    let extra = Extra {
        arguments: &arguments,
        ..of_daemonset(&api)
    };
    let mut agent = Agent::start_with(lab.places(), &extra)?;
    let has_entry = || Ok(runtime.read()?.to_string().contains("sidetrack-cni"));
    wait_for(has_entry)?;
    wait_watched(&api)?;
    let _hanging = HangingFs::mount(Path::new(&bin))?;
    eventually(Duration::from_secs(20), || {
        let problems = lab.places().problems()?;
        ensure!(problems.contains("disk does not answer"), "{problems}");
        Ok(())
    })?;
    uninstall(&api)?;
    wait_deletion_noticed(lab.places())?;
    agent.end(Signal::SIGTERM)?;
    ensure!(!has_entry()?, "{}", lab.places().log());
    Ok(())
}

kernel_test!(a_daemonset_alone_is_no_uninstall);
/// People delete it to restart all agents, and some upgrades replace it.
fn a_daemonset_alone_is_no_uninstall() -> Result<()> {
    let mut lab = Lab::new()?;
    let api = api_server(&lab)?;
    let pod = lab.pod("app", 2)?.under_kubelet(&lab, &lab.uid(1))?;
    let _sidecar = sidecar::start(&pod, &[])?;
    api.apply(injected("web", &lab.uid(1)))?;
    let extra = of_daemonset(&api);
    // Deleted, and another one while the agent waits; deleted for good.
    for replaced in [true, false] {
        api.forget_requests();
        let mut agent = Agent::start_with(lab.places(), &extra)?;
        lab.places().wait_enrolled("shop/web")?;
        wait_watched(&api)?;
        delete(&api, "DaemonSet")?;
        wait_for(|| Ok(lab.places().log().contains("DaemonSet is deleted")))?;
        if replaced {
            create(&api, "DaemonSet")?;
            wait_for(|| Ok(lab.places().log().contains("a DaemonSet again")))?;
        }
        agent.end(Signal::SIGTERM)?;
        let log = lab.places().log();
        ensure!(lab.places().pins().exists(), "{log}");
        ensure!(
            log.contains("interception continues, `sidetrack cleanup`"),
            "{log}"
        );
    }
    Ok(())
}

kernel_test!(an_ending_namespace_is_an_uninstall);
/// Its objects are deleted in no certain order.
fn an_ending_namespace_is_an_uninstall() -> Result<()> {
    let lab = Lab::new()?;
    let api = api_server(&lab)?;
    let extra = of_daemonset(&api);
    let mut agent = Agent::start_with(lab.places(), &extra)?;
    wait_watched(&api)?;
    let mut ending = namespace(DAEMONSET.0, None);
    ending["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    api.apply(ending)?;
    wait_deletion_noticed(lab.places())?;
    agent.end(Signal::SIGTERM)?;
    let pins = lab.places().bpffs.join("sidetrack");
    ensure!(!pins.exists(), "{}", lab.places().log());
    Ok(())
}

kernel_test!(a_daemonset_that_never_existed_is_not_deleted);
fn a_daemonset_that_never_existed_is_not_deleted() -> Result<()> {
    let lab = Lab::new()?;
    let api = api_server(&lab)?;
    let extra = Extra {
        api: Some(&api),
        arguments: &["--daemonset", "sidetrack-system/misspelled"],
        ..Extra::default()
    };
    let mut agent = Agent::start_with(lab.places(), &extra)?;
    wait_watched(&api)?;
    let problems = || lab.places().problems();
    let there_is_none = "there is no DaemonSet sidetrack-system/misspelled";
    wait_for(|| Ok(problems()?.contains(there_is_none)))?;
    let mut late = object("DaemonSet");
    late["metadata"]["name"] = "misspelled".into();
    api.apply(late)?;
    wait_for(|| Ok(problems()? == "[]"))?;
    api.delete("DaemonSet", DAEMONSET.0, "misspelled")?;
    wait_for(|| {
        Ok(lab
            .places()
            .log()
            .contains("the agent's DaemonSet is deleted"))
    })?;
    ensure!(problems()? == "[]", "{}", problems()?);
    agent.end(Signal::SIGTERM)?;
    ensure!(lab.places().pins().exists(), "{}", lab.places().log());
    Ok(())
}

kernel_test!(a_void_token_is_no_uninstall_and_others_are_used);
/// The service account was deleted and made again, or etcd restored.
fn a_void_token_is_no_uninstall_and_others_are_used() -> Result<()> {
    let lab = Lab::new()?;
    let api = api_server(&lab)?;
    let extra = of_daemonset(&api);
    let pins = lab.places().bpffs.join("sidetrack");
    let revoke = || -> Result<()> {
        wait_watched(&api)?;
        api.revoke(true);
        api.down();
        api.up();
        // Each watch learns it by itself.
        wait_for(|| {
            let problems = lab.places().problems()?;
            Ok(problems.contains("delete the agent's pod")
                && problems.contains("watch the agent's DaemonSet"))
        })
    };
    let mut agent = Agent::start_with(lab.places(), &extra)?;
    revoke()?;
    let took = agent.end(Signal::SIGTERM)?;
    let log = lab.places().log();
    ensure!(took < Duration::from_secs(5), "{took:?}");
    ensure!(
        log.contains("whether sidetrack is uninstalled is not known"),
        "{log}"
    );
    ensure!(pins.exists(), "{log}");
    // With the credentials that it has read it would continue for ever.
    api.revoke(false);
    api.forget_requests();
    let mut agent = Agent::start_with(lab.places(), &extra)?;
    revoke()?;
    let kubeconfig = fs::read_to_string(api.kubeconfig())?;
    fs::write(api.kubeconfig(), kubeconfig + "\n")?;
    eventually(Duration::from_secs(60), || {
        ensure!(agent.has_ended()?, "the agent still runs");
        Ok(())
    })?;
    let log = lab.places().log();
    ensure!(log.contains("there are others now"), "{log}");
    ensure!(pins.exists(), "{log}");
    Ok(())
}

kernel_test!(an_uninstall_removes_the_plugins_entry);
fn an_uninstall_removes_the_plugins_entry() -> Result<()> {
    let lab = Lab::new()?;
    let api = api_server(&lab)?;
    let runtime = Runtime::new(&lab)?;
    let before = runtime.read()?;
    let (bin, conf) = (runtime.bin(), runtime.conf());
    let places = [
        "--cni-bin-dir",
        bin.as_str(),
        "--cni-conf-dir",
        conf.as_str(),
    ];
    let extra = Extra {
        api: Some(&api),
        arguments: &[places.as_slice(), &OF_DAEMONSET].concat(),
        ..Extra::default()
    };
    let mut agent = Agent::start_with(lab.places(), &extra)?;
    wait_for(|| has_entry(&runtime))?;
    wait_watched(&api)?;
    // An upgrade keeps it: pods that start meanwhile wait for the next agent.
    agent.end(Signal::SIGTERM)?;
    ensure!(has_entry(&runtime)?, "an upgrade leaves the entry in place");
    api.forget_requests();
    let mut agent = Agent::start_with(lab.places(), &extra)?;
    wait_watched(&api)?;
    uninstall(&api)?;
    wait_deletion_noticed(lab.places())?;
    agent.end(Signal::SIGTERM)?;
    let after = runtime.read()?;
    ensure!(after == before, "{after}\n{}", lab.places().log());
    // CRI-O runs the plugins a pod was started with when it stops the pod.
    ensure!(has_binary(&runtime)?, "the binary stays");
    Ok(())
}

kernel_test!(cni_remove_removes_the_entry_at_start);
fn cni_remove_removes_the_entry_at_start() -> Result<()> {
    let lab = Lab::new()?;
    let api = api_server(&lab)?;
    let runtime = Runtime::new(&lab)?;
    let before = runtime.read()?;
    runtime.install(&lab, &[])?;
    ensure!(has_entry(&runtime)?, "there is an entry to remove");
    let (bin, conf) = (runtime.bin(), runtime.conf());
    let _agent = Agent::start_with(
        lab.places(),
        &Extra {
            api: Some(&api),
            arguments: &[
                "--cni-bin-dir",
                &bin,
                "--cni-conf-dir",
                &conf,
                "--cni-remove",
            ],
            ..Extra::default()
        },
    )?;
    wait_for(|| Ok(runtime.read()? == before))?;
    ensure!(has_binary(&runtime)?, "the binary stays");
    Ok(())
}

/// Whether the plugin is in the network configuration.
fn has_entry(runtime: &Runtime) -> Result<bool> {
    let list = runtime.read()?;
    let mut plugins = list["plugins"].as_array().into_iter().flatten();
    Ok(plugins.any(|plugin| plugin["type"] == "sidetrack-cni"))
}

fn has_binary(runtime: &Runtime) -> Result<bool> {
    Ok(fs::exists(format!("{}/sidetrack-cni", runtime.bin()))?)
}
