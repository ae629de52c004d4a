//! An agent that cannot start shows the reason.

use std::fs;

use anyhow::{Result, ensure};
use lab::{
    agent::{Agent, Places, binary},
    command::output,
    network::Lab,
};

kernel_test!(places_that_are_not_there);
fn places_that_are_not_there() -> Result<()> {
    let lab = Lab::new()?;
    let dir = lab.dir().to_string_lossy().into_owned();
    let ends = |change: &dyn Fn(&mut Places), words: &[&str]| -> Result<()> {
        let mut places = lab.places().clone();
        change(&mut places);
        let _ = fs::remove_file(&places.log);
        let ended = Agent::spawn(&places)?.wait()?;
        let log = places.log();
        ensure!(ended.code() == Some(1), "{ended}: {log}");
        ensure!(
            words.iter().all(|word| log.contains(word)),
            "{words:?} in {log}"
        );
        ensure!(log.lines().count() == 1, "one line: {log}");
        Ok(())
    };
    ends(
        &|places| places.bpffs = dir.clone().into(),
        &["not a bpffs", "mount -t bpf", "--bpffs"],
    )?;
    ends(
        &|places| places.cgroup = dir.clone().into(),
        &["in a cgroup2 mount", "--cgroup"],
    )?;
    ends(
        &|places| places.cgroup = "/nowhere".into(),
        &["/nowhere", "No such file"],
    )?;
    let file = lab.dir().join("precious");
    fs::write(&file, "keep me")?;
    ends(
        &|places| places.socket.clone_from(&file),
        &["is not a socket", "--socket"],
    )?;
    let pins = lab.places().bpffs.join("sidetrack");
    ensure!(!pins.exists(), "a start that fails leaves nothing behind");
    let mut other = lab.places().clone();
    other.socket.clone_from(&file);
    ensure!(other.output(&["cleanup"])?.status.code() == Some(1));
    ensure!(fs::read_to_string(&file)? == "keep me");
    ends(
        &|places| places.pods = "/nowhere".into(),
        &["/nowhere", "--pods-dir"],
    )?;
    Ok(())
}

kernel_test!(missing_capabilities);
fn missing_capabilities() -> Result<()> {
    let lab = Lab::new()?;
    let places = lab.places();
    let program = binary()?;
    // A process that is root in name only.
    let output = output(&[
        "setpriv",
        "--bounding-set=-all",
        "--inh-caps=-all",
        &program.to_string_lossy(),
        "agent",
        "--pods-dir",
        &places.pods.to_string_lossy(),
        "--bpffs",
        &places.bpffs.to_string_lossy(),
        "--cgroup",
        &places.cgroup.to_string_lossy(),
        "--socket",
        &places.socket.to_string_lossy(),
    ])?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.code() == Some(1), "{output:?}");
    ensure!(said.contains("CAP_BPF") && said.contains("root"), "{said}");
    Ok(())
}
