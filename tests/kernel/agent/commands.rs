//! Output of the commands, and the agent's memory.

use anyhow::{Result, ensure};
use lab::{
    agent::{Agent, Places},
    network::Lab,
};
use nix::sys::signal::Signal;

kernel_test!(memory_with_two_pods);
fn memory_with_two_pods() -> Result<()> {
    // Of the binary this build has more pages than the one for nodes.
    const LIMIT_KIB: u64 = 8 * 1024;
    let mut lab = Lab::new()?;
    for (name, number) in [("one", 2), ("two", 3)] {
        let pod = lab.pod(name, number)?;
        lab.write_pod(name, &pod, &[])?;
    }
    let agent = Agent::start(lab.places())?;
    agent.places.wait_enrolled("test/two")?;
    let (resident, anonymous) = agent.memory()?;
    eprintln!("agent with two pods: {resident} KiB resident, {anonymous} KiB of them its own");
    ensure!(anonymous < LIMIT_KIB, "{anonymous} KiB of its own");
    Ok(())
}

kernel_test!(commands_print_tables_and_json);
fn commands_print_tables_and_json() -> Result<()> {
    let mut lab = Lab::new()?;
    let pod = lab.pod("app", 2)?;
    lab.write_pod("app", &pod, &[])?;
    let mut agent = Agent::start(lab.places())?;
    let waited = lab
        .places()
        .output(&["status", "--wait", "test/app", "--timeout", "5s"])?;
    ensure!(waited.status.success(), "{waited:?}");
    let table = String::from_utf8(waited.stdout)?;
    ensure!(
        table.contains("1 enrolled") && table.contains("connect4"),
        "{table}"
    );
    let missing =
        lab.places()
            .output(&["status", "--wait", "test/missing", "--timeout", "200ms"])?;
    ensure!(missing.status.code() == Some(1), "{missing:?}");
    ensure!(String::from_utf8_lossy(&missing.stderr).contains("does not know the pod"));
    let table = lab.places().output(&["pods"])?;
    ensure!(String::from_utf8(table.stdout)?.contains("test/app"));
    for (words, rows) in [
        (&["test/app"][..], 1),
        (&["-n", "test"], 1),
        (&["-n", "other"], 0),
    ] {
        let pods = lab
            .places()
            .json(&[&["pods", "-o", "json"], words].concat())?;
        ensure!(
            pods.as_array().map(Vec::len) == Some(rows),
            "{words:?}: {pods}"
        );
    }
    let absent = lab.places().output(&["pods", "test/none"])?;
    ensure!(absent.status.code() == Some(1), "{absent:?}");
    let doctor = lab.places().json(&["doctor", "-o", "json"])?;
    ensure!(
        doctor["ok"] == true && doctor["checks"].as_array().is_some(),
        "{doctor}"
    );
    for wrong in [
        &["status", "--nonsense"][..],
        &["nonsense"],
        &["status", "--timeout", "5s"],
    ] {
        let output = lab.places().output(wrong)?;
        ensure!(output.status.code() == Some(2), "{wrong:?}: {output:?}");
    }
    pods_by_name(lab.places())?;
    agent.end(Signal::SIGTERM)?;
    let status = lab.places().output(&["status"])?;
    ensure!(status.status.code() == Some(1), "no agent: {status:?}");
    ensure!(String::from_utf8(status.stdout)?.contains("not running"));
    Ok(())
}

/// A pod may be named in every way, and every form of output has it.
fn pods_by_name(places: &Places) -> Result<()> {
    for words in [
        &["rules", "app"][..],
        &["rules", "-n", "test", "app"],
        &["status", "-n", "test", "--wait", "app"],
        &["explain", "app", "outbound", "--dst", "10.77.0.9:80"],
        &["why", "app"],
        &["pods", "-o", "wide"],
        &["pods", "-o", "yaml"],
    ] {
        let output = places.output(words)?;
        ensure!(output.status.success(), "{words:?}: {output:?}");
    }
    for words in [&["pods", "-n", "nosuch"][..], &["events", "-n", "nosuch"]] {
        let text = places.output(words)?;
        ensure!(text.status.success() && !text.stderr.is_empty(), "{text:?}");
        // The plugin takes a line on stderr for a problem.
        let json = places.output(&[words, &["-o", "json"]].concat())?;
        ensure!(json.stdout == b"[]\n" && json.stderr.is_empty(), "{json:?}");
    }
    let wide = String::from_utf8(places.output(&["pods", "-o", "wide"])?.stdout)?;
    ensure!(
        wide.contains("NETNS-PATH") && wide.contains("/run/netns/"),
        "{wide}"
    );
    for (words, code, part) in [
        (&["rules", "test/ap"][..], 1, "did you mean test/app?"),
        (&["why", "-n", "test", "ap"], 1, "did you mean test/app?"),
        (&["rules", "-n", "shop", "test/app"], 2, "namespace shop"),
        (&["rules", "app", "--accelerate"], 2, "--manifest FILE"),
    ] {
        let output = places.output(words)?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(
            output.status.code() == Some(code) && said.contains(part),
            "{words:?}: {output:?}"
        );
    }
    Ok(())
}
