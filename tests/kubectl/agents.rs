//! Agents that do not answer, and other versions.

use std::time::Duration;

use anyhow::{Result, ensure};
use axum::http::StatusCode;
use serde_json::json;
use sidetrack::api::PodState;

use crate::fixture::{Agent, Cluster, Ended, known};

/// Two nodes. The first has an agent with pod `shop/web-0`.
fn two(second: Agent) -> Result<Cluster> {
    let cluster = Cluster::new(&["node-1", "node-2"])?;
    cluster
        .api
        .apply(lab::injected::namespace("shop", Some("enabled")))?;
    cluster.pod("shop", "web-0", Some("node-1"))?;
    cluster.pod("shop", "web-1", Some("node-2"))?;
    let first = [known("shop", "web-0", PodState::Enrolled)];
    cluster.agent("node-1", Agent::with(&first))?;
    cluster.agent("node-2", second)?;
    Ok(cluster)
}

/// Checks that the commands show why node-2 has no answer, and all of node-1.
fn second_is_silent(cluster: &Cluster, expected: &str) -> Result<()> {
    let pods = cluster.run(&["pods", "-A", "-o", "json", "--timeout", "1s"])?;
    let all = pods.json()?;
    ensure!(pods.code == 1, "{pods:?}");
    ensure!(
        pods.errors.contains("node node-2: ") && pods.errors.contains(expected),
        "{pods:?}"
    );
    ensure!(all["unanswered"][0]["node"] == "node-2", "{all}");
    ensure!(
        all["unanswered"].as_array().map(Vec::len) == Some(1),
        "{all}"
    );
    ensure!(
        all["pods"][0]["name"] == "web-0" && all["pods"][0]["state"] == "enrolled",
        "{all}"
    );
    ensure!(
        all["pods"][1]["name"] == "web-1" && all["pods"][1]["state"] == "unknown",
        "{all}"
    );
    let status = cluster.run(&["status", "-o", "json", "--timeout", "1s"])?;
    let report = status.json()?;
    ensure!(status.code == 3, "{status:?}");
    ensure!(report["nodes"][0]["state"] == "ready", "{report}");
    ensure!(report["nodes"][1]["state"] == "no-answer", "{report}");
    let problem = report["nodes"][1]["problem"].as_str().unwrap_or_default();
    ensure!(problem.contains(expected), "{problem}");
    ensure!(
        report["unanswered"] == json!([format!("node-2: {problem}")])
            && report["problems"] == json!([]),
        "{report}"
    );
    // Its agent may well have enrolled it.
    ensure!(report["not_intercepted"] == json!([]), "{report}");
    ensure!(report["not_known"][0]["name"] == "web-1", "{report}");
    Ok(())
}

#[test]
fn agents_answer() -> Result<()> {
    let cluster = two(Agent::with(&[known("shop", "web-1", PodState::Enrolled)]))?;
    for protocol in ["v5.channel.k8s.io", "v4.channel.k8s.io"] {
        cluster.api.exec_protocols(&[protocol]);
        let pods = cluster.run(&["pods", "-A", "-o", "json"])?;
        let all = pods.json()?;
        ensure!(pods.code == 0 && pods.errors.is_empty(), "{pods:?}");
        for (number, node) in ["node-1", "node-2"].into_iter().enumerate() {
            let pod = &all["pods"][number];
            ensure!(
                pod["node"] == node && pod["state"] == "enrolled",
                "{protocol}: {all}"
            );
            // What this build does not show is there for programs.
            ensure!(pod["netns"]["cookie"] == 17, "{protocol}: {all}");
        }
        let status = cluster.run(&["status", "--check"])?;
        ensure!(status.code == 0, "{status:?}");
        ensure!(!status.out.contains("problems:"), "{status:?}");
    }
    ensure!(
        cluster
            .asked()
            .iter()
            .all(|asked| asked.container == "agent")
    );
    Ok(())
}

/// The pods that measure it are ready or not.
#[test]
fn interception_that_is_not_measured_is_a_problem() -> Result<()> {
    let cluster = two(Agent::with(&[known("shop", "web-1", PodState::Enrolled)]))?;
    let probe_in = |node: &str, phase: &str, ready: &str| {
        cluster.api.apply(json!({
            "kind": "Pod",
            "metadata": {
                "name": format!("sidetrack-interception-probe-{node}"), "namespace": "sidetrack-system",
                "labels": {"app.kubernetes.io/name": "sidetrack-interception-probe"},
            },
            "spec": {"nodeName": node, "containers": [{"name": "app"}, {"name": "istio-proxy"}]},
            "status": {"phase": phase, "conditions": [{"type": "Ready", "status": ready}]},
        }))
    };
    let probe = |node: &str, ready: &str| probe_in(node, "Running", ready);
    probe("node-1", "True")?;
    probe("node-2", "True")?;
    let fine = cluster.run(&["status", "--check"])?;
    ensure!(fine.code == 0, "{fine:?}");
    ensure!(
        fine.out.contains("2 of 2 interception probes are ready"),
        "{fine:?}"
    );
    probe("node-2", "False")?;
    let failed = cluster.run(&["status", "--check"])?;
    ensure!(failed.code == 1, "{failed:?}");
    ensure!(
        failed.out.contains("1 of 2 interception probes are ready"),
        "{failed:?}"
    );
    ensure!(
        failed
            .out
            .contains("node-2: its interception probe is not ready"),
        "{failed:?}"
    );
    let report = cluster.run(&["status", "-o", "json"])?.json()?;
    ensure!(
        report["probes"] == json!({"intercept": 1, "pods": 2}),
        "{report}"
    );
    probe_in("node-2", "Pending", "False")?;
    let pending = cluster.run(&["status"])?;
    ensure!(
        pending
            .out
            .contains("has measured nothing, since its pod is Pending"),
        "{pending:?}"
    );
    Ok(())
}

#[test]
fn an_agent_that_hangs_does_not_hold_up_the_others() -> Result<()> {
    let cluster = two(Agent::Hangs)?;
    second_is_silent(&cluster, "no answer within 1s")?;
    let pods = cluster.run(&["pods", "-A", "--timeout", "1s"])?;
    ensure!(pods.took >= Duration::from_secs(1), "{pods:?}");
    ensure!(pods.took < Duration::from_secs(4), "{pods:?}");
    let status = cluster.run(&["status", "--timeout", "1s"])?;
    ensure!(status.took < Duration::from_secs(4), "{status:?}");
    ensure!(status.out.contains("no-answer"), "{status:?}");
    Ok(())
}

#[test]
fn exec_is_refused() -> Result<()> {
    let cluster = two(Agent::Refused(StatusCode::FORBIDDEN))?;
    second_is_silent(
        &cluster,
        "exec refused (403 Forbidden): it takes the right to create pods/exec in namespace sidetrack-system",
    )
}

/// One sentence, and no value of Rust.
fn is_a_sentence(ended: &Ended, expected: &str) -> Result<()> {
    ensure!(ended.code == 1 && ended.out.is_empty(), "{ended:?}");
    ensure!(
        ended.errors == format!("kubectl-sidetrack: {expected}\n"),
        "{ended:?}"
    );
    ensure!(ended.took < Duration::from_secs(4), "{ended:?}");
    Ok(())
}

#[test]
fn no_agent_may_be_asked() -> Result<()> {
    let cluster = two(Agent::Refused(StatusCode::FORBIDDEN))?;
    cluster.agent("node-1", Agent::Refused(StatusCode::FORBIDDEN))?;
    let expected = "exec refused (403 Forbidden): it takes the right to create pods/exec in namespace sidetrack-system";
    let both = format!("{expected}; as a reader: the agent's pod has no port `metrics`");
    for words in [
        ["status"].as_slice(),
        &["pods", "-A"],
        &["doctor"],
        &["top", "--once", "-A"],
    ] {
        is_a_sentence(&cluster.run(words)?, &both)?;
    }
    is_a_sentence(
        &cluster.run(&["rules", "shop/web-0"])?,
        &format!("node node-1: {both}"),
    )?;
    let trace = cluster.run(&["trace", "-A", "--duration", "20s", "-o", "json"])?;
    is_a_sentence(&trace, expected)
}

#[test]
fn the_api_server_forbids_to_list() -> Result<()> {
    let cluster = two(Agent::Hangs)?;
    cluster.api.forbid("Pod")?;
    for (words, expected) in [
        (["pods", "-A"].as_slice(), "list pods: "),
        (&["status"], "list pods: "),
        (&["trace", "-A"], "list pods: "),
        (&["rules", "shop/web-0"], "list pods: "),
    ] {
        let forbidden = format!("{expected}pods is forbidden: cannot list");
        is_a_sentence(&cluster.run(words)?, &forbidden)?;
    }
    Ok(())
}

#[test]
fn answers_that_are_none() -> Result<()> {
    let cluster = two(Agent::Writes("Segmentation fault", 0))?;
    second_is_silent(&cluster, "its answer is not understood")?;
    for (agent, expected) in [
        (
            Agent::Writes("{\"agent\": 7}", 0),
            "its answer is not understood",
        ),
        (Agent::Writes("", 3), "it exited with 3"),
        (Agent::Writes("\u{1b}[31mred", 0), "\\\\u{1b}[31mred"),
        (Agent::Breaks, "the connection ended before the command did"),
        (
            Agent::CannotStart("exec: \"sidetrack\": not found"),
            "the command did not start: Internal error occurred: exec: \"sidetrack\": not found",
        ),
    ] {
        cluster.agent("node-2", agent)?;
        second_is_silent(&cluster, expected)?;
    }
    Ok(())
}

#[test]
fn an_agent_that_has_crashed_is_not_asked() -> Result<()> {
    let cluster = two(Agent::Hangs)?;
    cluster.agent_pod("node-2", json!({"waiting": {"reason": "CrashLoopBackOff"}}))?;
    second_is_silent(&cluster, "the agent's container waits: CrashLoopBackOff")?;
    ensure!(
        cluster
            .asked()
            .iter()
            .all(|asked| asked.pod == "sidetrack-node-1")
    );
    Ok(())
}

#[test]
fn another_version_is_named() -> Result<()> {
    let cluster = two(Agent::Answers {
        version: "0.2.0",
        pods: vec![known("shop", "web-1", PodState::Enrolled)],
    })?;
    let status = cluster.run(&["status"])?;
    ensure!(status.code == 0, "{status:?}");
    ensure!(
        status
            .out
            .contains("different versions: 0.1.0 on node-1; 0.2.0 on node-2"),
        "{status:?}"
    );
    ensure!(cluster.run(&["status", "--check"])?.code == 1);
    Ok(())
}

#[test]
fn states_of_a_later_version_are_shown_as_they_are() -> Result<()> {
    let later = r#"[{"namespace": "shop", "name": "web-1", "state": "quarantined", "reason": "new", "color": "red"}]"#;
    let cluster = two(Agent::Writes(later, 0))?;
    let pods = cluster.run(&["pods", "-A", "-o", "json"])?;
    let all = pods.json()?;
    ensure!(pods.code == 0, "{pods:?}");
    ensure!(
        all["pods"][1]["state"] == "quarantined" && all["pods"][1]["color"] == "red",
        "{all}"
    );
    let table = cluster.run(&["pods", "-A"])?;
    ensure!(table.out.contains("quarantined"), "{table:?}");
    Ok(())
}

#[test]
fn nodes_that_may_not_be_listed() -> Result<()> {
    let cluster = two(Agent::with(&[]))?;
    cluster.api.forbid("Node")?;
    let status = cluster.run(&["status"])?;
    ensure!(status.code == 0, "{status:?}");
    ensure!(
        status.out.contains("node-1") && status.out.contains("node-2"),
        "{status:?}"
    );
    ensure!(status.out.contains("nodes is forbidden"), "{status:?}");
    Ok(())
}

#[test]
fn no_agent_at_all() -> Result<()> {
    let cluster = Cluster::new(&["node-1"])?;
    cluster
        .api
        .apply(lab::injected::namespace("shop", Some("enabled")))?;
    cluster.pod("shop", "web-0", Some("node-1"))?;
    let advice = "namespace sidetrack-system has no agent";
    let pods = cluster.run(&["pods", "-A"])?;
    ensure!(pods.code == 1 && pods.errors.contains(advice), "{pods:?}");
    ensure!(pods.out.contains("node node-1 has no agent"), "{pods:?}");
    let status = cluster.run(&["status"])?;
    ensure!(
        status.code == 3 && status.out.contains(advice),
        "{status:?}"
    );
    ensure!(status.out.contains("shop/web-0 (no-agent)"), "{status:?}");
    Ok(())
}

#[test]
fn an_agent_that_is_not_ready_is_not_fine() -> Result<()> {
    let script = "case $2 in pods) echo '[]';; *) echo '{\"agent_state\": \"starting\"}';; esac";
    let cluster = two(Agent::Script(script.to_owned()))?;
    let status = cluster.run(&["status", "--check"])?;
    ensure!(
        status.code == 1 && status.out.contains("starting"),
        "{status:?}"
    );
    ensure!(cluster.run(&["status"])?.code == 0);
    Ok(())
}

#[test]
fn nodes_that_should_have_an_agent() -> Result<()> {
    let names: Vec<String> = (0..30).map(|number| format!("node-{number:02}")).collect();
    let nodes: Vec<&str> = names.iter().map(String::as_str).collect();
    let cluster = Cluster::new(&nodes)?;
    cluster.agent("node-07", Agent::with(&[]))?;
    let check = |code: i32, said: &str| -> Result<()> {
        let status = cluster.run(&["status", "--check"])?;
        ensure!(
            status.code == code && status.out.contains(said),
            "{status:?}"
        );
        Ok(())
    };
    // The DaemonSet is for one node only, and this one has its agent.
    check(0, "nodes: 29 no-agent, 1 ready; 1 should have an agent")?;
    cluster.api.apply(lab::plugin::daemonset(30))?;
    check(
        1,
        "29 of 30 nodes that should have an agent have no pod of it",
    )?;
    let status = cluster.run(&["status", "--check"])?;
    ensure!(status.out.lines().count() < 24, "{status:?}");
    ensure!(cluster.run(&["status"])?.code == 0);
    // An administrator has opened the gate of a node, whose agent is not there to say so.
    let mut opened = lab::plugin::daemonset(30);
    opened["metadata"]["annotations"] = json!({"sidetrack.dev/open-gate": "node-03"});
    cluster.api.apply(opened.clone())?;
    check(1, "the gate is open by annotation sidetrack.dev/open-gate")?;
    check(1, "for nodes \"node-03\"")?;
    // An agent that is there says so as well.
    let says =
        "the gate of this node is open by annotation sidetrack.dev/open-gate of DaemonSet s/t";
    let says = format!(
        "case $2 in pods) echo '[]';; *) echo '{{\"agent_state\": \"ready\", \"problems\": [\"{says}\"]}}';; esac"
    );
    cluster.agent("node-07", Agent::Script(says))?;
    opened["metadata"]["annotations"] = json!({"sidetrack.dev/open-gate": "*"});
    cluster.api.apply(opened)?;
    let status = cluster.run(&["status"])?;
    ensure!(
        status.out.matches("sidetrack.dev/open-gate").count() == 1,
        "{status:?}"
    );
    cluster.agent("node-07", Agent::with(&[]))?;
    // It is not known how many should have one.
    cluster.api.forbid("DaemonSet")?;
    check(3, "daemonsets is forbidden")
}

#[test]
fn as_many_are_asked_at_a_time_as_the_flag_says() -> Result<()> {
    let nodes: Vec<String> = (0..8).map(|number| format!("node-{number}")).collect();
    let names: Vec<&str> = nodes.iter().map(String::as_str).collect();
    let cluster = Cluster::new(&names)?;
    for node in &names {
        cluster.agent(node, Agent::Hangs)?;
    }
    let run = |parallel| cluster.run(&["pods", "-A", "--timeout", "1s", "--parallel", parallel]);
    let (two, eight) = (run("2")?, run("8")?);
    ensure!(two.took >= Duration::from_secs(4), "{two:?}");
    ensure!(eight.took < Duration::from_secs(4), "{eight:?}");
    ensure!(eight.errors.lines().count() == 9, "{eight:?}");
    Ok(())
}

/// What the commands of an agent that is stopped write: the pinned maps, and that they are.
const STOPPED: &str = r#"
case $2 in
status) echo '{"agent": null, "agent_state": "silent", "problems": ["the agent does not answer within 3 s"]}'; exit 1;;
cost) echo '{"enrolled": 1, "maps": [{"bytes": 2048}], "agent": null, "processors": null}';;
connections) echo '{"connections": [], "omitted": 0, "unread": []}';;
pods) echo '[{"namespace": "shop", "name": "web-1", "state": "enrolled", "reason": null}]';;
*) echo '[]';;
esac
echo 'sidetrack: the agent does not answer within 3 s; these maps are pinned:' >&2"#;

#[test]
fn an_api_server_that_cannot_be_reached_is_named() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let kubeconfig = dir.path().join("config");
    let config = json!({
        "clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:1"}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "users": [{"name": "u", "user": {}}],
        "current-context": "c",
    });
    std::fs::write(&kubeconfig, config.to_string())?;
    let mut command = std::process::Command::new(lab::command::built("kubectl-sidetrack")?);
    let output = command
        .args(["pods", "-A", "--kubeconfig"])
        .arg(kubeconfig)
        .output()?;
    ensure!(output.status.code() == Some(1), "{output:?}");
    let errors = String::from_utf8(output.stderr)?;
    let said = "the API server at http://127.0.0.1:1/ cannot be reached: tcp connect error: Connection refused (os error 111)\n";
    ensure!(errors.ends_with(said), "{errors}");
    ensure!(!errors.contains("ServiceError"), "{errors}");
    Ok(())
}

#[test]
fn an_agent_that_is_stopped_is_named() -> Result<()> {
    let cluster = two(Agent::Script(STOPPED.to_owned()))?;
    let first = Agent::Script(STOPPED.replace("echo 'sidetrack: ", "#"));
    cluster.agent("node-1", first)?;
    for words in [
        ["pods", "-A"],
        ["events", "-A"],
        ["connections", "-A"],
        ["cost", "-o=wide"],
    ] {
        let ended = cluster.run(&words)?;
        ensure!(ended.code == 1, "{words:?}: {ended:?}");
        let said =
            "node node-2: sidetrack: the agent does not answer within 3 s; these maps are pinned\n";
        ensure!(ended.errors.contains(said), "{words:?}: {ended:?}");
        ensure!(!ended.errors.contains("node-1"), "{words:?}: {ended:?}");
    }
    let pods = cluster.run(&["pods", "-A"])?;
    ensure!(
        pods.out.contains("shop/web-1  node-2  enrolled"),
        "{pods:?}"
    );
    let status = cluster.run(&["status"])?;
    ensure!(status.code == 3, "{status:?}");
    let said = "no answer:\n  node-1: the agent does not answer within 3 s\n";
    ensure!(status.out.contains(said), "{status:?}");
    ensure!(!status.out.contains("problems:"), "{status:?}");
    ensure!(cluster.run(&["status", "--check"])?.code == 1);
    Ok(())
}

/// As many lines for people as `status` has, however many nodes are silent.
#[test]
fn many_silent_agents_are_counted() -> Result<()> {
    let nodes: Vec<String> = (0..40).map(|number| format!("node-{number:02}")).collect();
    let names: Vec<&str> = nodes.iter().map(String::as_str).collect();
    let cluster = Cluster::new(&names)?;
    for (number, node) in names.iter().enumerate() {
        cluster.pod("shop", &format!("web-{number}"), Some(node))?;
        cluster.agent_pod(node, json!({"waiting": {"reason": "CrashLoopBackOff"}}))?;
    }
    let trace = ["trace", "-A", "--duration=1s"];
    for words in [
        ["pods", "-A"].as_slice(),
        &["events", "-A"],
        &["connections", "-A"],
        &["top", "-A", "--once"],
        &["cost"],
        &["doctor"],
        &["version"],
        &trace,
    ] {
        let ended = cluster.run(words)?;
        ensure!(ended.code == 1, "{words:?}: {ended:?}");
        let lines = ended.errors.lines();
        let count = |part: &str| lines.clone().filter(|line| line.contains(part)).count();
        ensure!(count("CrashLoopBackOff") <= 11, "{words:?}: {ended:?}");
        ensure!(count("and 30 more: ") == 1, "{words:?}: {ended:?}");
        if words != trace && words[0] != "connections" {
            let title = "kubectl-sidetrack: 40 of 40 agents do not answer:\n";
            ensure!(ended.errors.starts_with(title), "{words:?}: {ended:?}");
        }
        if words[0] != "pods" {
            ensure!(ended.out.lines().count() < 5, "{words:?}: {ended:?}");
        }
    }
    Ok(())
}

#[test]
fn a_long_answer_arrives_whole() -> Result<()> {
    let many: Vec<_> = (0..2000)
        .map(|number| known("shop", &format!("many-{number:04}"), PodState::Enrolled))
        .collect();
    let cluster = two(Agent::with(&many))?;
    let pods = cluster.run(&["pods", "-A", "-o", "json"])?.json()?;
    let many = pods["pods"].as_array().map(Vec::len);
    // Two of the first agent's node and the labeled pod that the second agent has not seen.
    ensure!(many == Some(2002), "{many:?}");
    Ok(())
}
