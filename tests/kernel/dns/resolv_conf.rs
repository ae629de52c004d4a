//! A pod's resolv.conf decides which servers count, whatever it is.

use std::{fs, path::Path, time::Duration};

use anyhow::{Context as _, Result, ensure};
use lab::{command::Process, protocol::ROOT};
use nix::{sys::stat::Mode, unistd::mkfifo};

use super::{CAPTURE, DNS, DnsFixture, OTHER};
use crate::fixture::VIP;

kernel_test!(resolv_conf_is_followed);
fn resolv_conf_is_followed() -> Result<()> {
    let dns = DnsFixture::new(&[VIP[0]])?;
    dns.enroll(&dns.manifest(&["--redirect-dns"]))?;
    dns.wait_port(VIP[0], CAPTURE)?;
    dns.write_resolv_conf(&[OTHER[0]])?;
    dns.wait_port(OTHER[0], CAPTURE)?;
    dns.wait_port(VIP[0], DNS)?;
    dns.write_resolv_conf(&[])?;
    dns.wait_port(OTHER[0], DNS)?;
    let row = dns
        .fixture
        .agent
        .places
        .pod("test/app")?
        .context("the pod")?;
    ensure!(
        row["notes"].to_string().contains("no server is known"),
        "{row}"
    );
    Ok(())
}

kernel_test!(a_resolv_conf_that_cannot_be_read_changes_nothing);
fn a_resolv_conf_that_cannot_be_read_changes_nothing() -> Result<()> {
    let dns = DnsFixture::new(&[VIP[0]])?;
    dns.enroll(&dns.manifest(&["--redirect-dns"]))?;
    dns.wait_port(VIP[0], CAPTURE)?;
    let path = dns.resolv_conf();
    let stays = |what: &str| -> Result<()> {
        // Longer than it takes to read it again.
        std::thread::sleep(Duration::from_secs(3));
        dns.wait_port(VIP[0], CAPTURE)
            .with_context(|| what.to_owned())?;
        ensure!(dns.fixture.accepted_by()? == 15001);
        fs::remove_file(&path)?;
        Ok(())
    };
    fs::remove_file(&path)?;
    mkfifo(&path, Mode::S_IRWXU)?;
    stays("a pipe")?;
    fs::File::create(&path)?.set_len(1 << 30)?;
    stays("a file of 1 GB")?;
    std::os::unix::fs::symlink("/proc/self/root/etc/passwd", &path)?;
    stays("a link to elsewhere")
}

kernel_test!(the_first_process_s_file_counts_where_the_namespace_is_named_by_path);
fn the_first_process_s_file_counts_where_the_namespace_is_named_by_path() -> Result<()> {
    let dns = DnsFixture::new(&[VIP[0]])?;
    // Without it nothing says which processes are the pod's.
    let manifest = dns.manifest(&["--redirect-dns"]).edited(|pod| {
        pod["metadata"].as_object_mut().map(|it| it.remove("uid"));
    });
    dns.enroll(&manifest)?;
    dns.wait_port(VIP[0], CAPTURE)?;
    let file = dns.fixture.lab.dir().join("resolv.conf");
    fs::write(&file, format!("nameserver {}\n", OTHER[0]))?;
    let script = "mount --bind $1 /etc/resolv.conf && exec sleep 1000";
    let file = file.display().to_string();
    let words = ["-c", script, "sh", &file];
    let pod = &dns.fixture.pod;
    let process = Process::start(&mut pod.command(ROOT.uid, Path::new("/bin/sh"), &words))?;
    dns.wait_port(OTHER[0], CAPTURE)?;
    dns.wait_port(VIP[0], DNS)?;
    // Also when it was there first.
    dns.fixture.lab.release("app")?;
    dns.enroll(&manifest)?;
    dns.wait_port(OTHER[0], CAPTURE)?;
    dns.wait_port(VIP[0], DNS)?;
    drop(process);
    dns.wait_port(VIP[0], CAPTURE)?;
    dns.wait_port(OTHER[0], DNS).map(drop)
}
