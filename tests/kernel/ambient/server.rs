//! The server that ztunnel asks, by itself: any file stands for a pod's network namespace.

use std::{
    fs::{self, File},
    os::unix::fs::MetadataExt as _,
    path::PathBuf,
    sync::Arc,
    thread,
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use lab::{wait::eventually, ztunnel::Ztunnel};
use sidetrack_ambient::{Netns, Served, Server, Table, Workload, is_answered, message::Hello};
use sidetrack_base::runtime::block_on;
use tempfile::TempDir;
use tokio::sync::oneshot;

/// Longer than anything here takes.
const WAIT_TIMEOUT: Duration = Duration::from_secs(20);

/// A server that serves, and its table.
struct Fixture {
    table: Arc<Table>,
    path: PathBuf,
    dir: TempDir,
    stop: Option<oneshot::Sender<()>>,
    server: Option<thread::JoinHandle<Result<()>>>,
}

impl Fixture {
    fn new() -> Result<Self> {
        let dir = TempDir::new()?;
        let path = dir.path().join("ztunnel/ztunnel.sock");
        let table = Arc::new(Table::default());
        let (stop, stopped) = oneshot::channel();
        let (of_server, at) = (Arc::clone(&table), path.clone());
        let server = thread::spawn(move || {
            block_on(async {
                let server = Server::bind(&at)?;
                tokio::select! {
                    () = server.serve(of_server) => {}
                    _ = stopped => {}
                }
                Ok(())
            })?
        });
        eventually(WAIT_TIMEOUT, || {
            ensure!(is_answered(&path), "it does not serve");
            Ok(())
        })?;
        Ok(Self {
            table,
            path,
            dir,
            stop: Some(stop),
            server: Some(server),
        })
    }

    fn set(&self, names: &[&str]) -> Result<()> {
        let workloads = names
            .iter()
            .map(|name| Ok((format!("uid-{name}"), self.workload(name)?)));
        self.table.set(workloads.collect::<Result<_>>()?);
        Ok(())
    }

    fn workload(&self, name: &str) -> Result<Workload> {
        let file = File::create(self.dir.path().join(name))?;
        Ok(Workload {
            name: name.to_owned(),
            namespace: "shop".to_owned(),
            service_account: "default".to_owned(),
            netns: Some(Netns {
                inode: file.metadata()?.ino(),
                open: Arc::new(file),
            }),
        })
    }

    /// What a ztunnel receives about a pod.
    fn add(&self, name: &str) -> Result<String> {
        let inode = fs::metadata(self.dir.path().join(name))?.ino();
        Ok(format!("add shop/{name} of default {inode}"))
    }

    fn wait_served(&self, name: &str, wanted: &Served) -> Result<()> {
        eventually(WAIT_TIMEOUT, || {
            let served = self.table.served(&format!("uid-{name}"));
            ensure!(served == *wanted, "{served:?}");
            Ok(())
        })
    }
}

impl Drop for Fixture {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(server) = self.server.take() {
            let _ = server.join();
        }
    }
}

kernel_test!(a_ztunnel_receives_every_pod_and_then_every_change);
fn a_ztunnel_receives_every_pod_and_then_every_change() -> Result<()> {
    let fixture = Fixture::new()?;
    fixture.set(&["a"])?;
    let ztunnel = Ztunnel::start(&fixture.path)?;
    ensure!(ztunnel.acknowledge()? == fixture.add("a")?);
    ensure!(ztunnel.acknowledge()? == "snapshot");
    fixture.wait_served("a", &Served::Yes)?;
    fixture.set(&["b"])?;
    ensure!(ztunnel.acknowledge()? == "delete uid-a");
    ensure!(ztunnel.acknowledge()? == fixture.add("b")?);
    fixture.wait_served("b", &Served::Yes)?;
    drop(ztunnel);
    fixture.wait_served("b", &Served::NoZtunnel)
}

kernel_test!(an_error_of_ztunnel_is_reported_and_the_others_continue);
fn an_error_of_ztunnel_is_reported_and_the_others_continue() -> Result<()> {
    let fixture = Fixture::new()?;
    fixture.set(&["a", "b"])?;
    let ztunnel = Ztunnel::start(&fixture.path)?;
    ztunnel.receive()?.context("add a")?;
    ztunnel.answer("port 15001\nis in use")?;
    ensure!(ztunnel.acknowledge()? == fixture.add("b")?);
    ensure!(ztunnel.acknowledge()? == "snapshot");
    fixture.wait_served("a", &Served::Refused("port 15001 is in use".to_owned()))?;
    // It is informed again after a while.
    ensure!(ztunnel.acknowledge()? == fixture.add("a")?);
    fixture.wait_served("a", &Served::Yes)
}

kernel_test!(a_ztunnel_that_hangs_does_not_delay_another);
fn a_ztunnel_that_hangs_does_not_delay_another() -> Result<()> {
    let fixture = Fixture::new()?;
    fixture.set(&["a"])?;
    let hung = Ztunnel::start(&fixture.path)?;
    hung.receive()?
        .context("add a, which is never acknowledged")?;
    let other = Ztunnel::start(&fixture.path)?;
    ensure!(other.acknowledge()? == fixture.add("a")?);
    ensure!(other.acknowledge()? == "snapshot");
    ensure!(hung.is_closed()?, "the hung one's connection stays");
    fixture.wait_served("a", &Served::Yes)
}

kernel_test!(during_an_upgrade_the_new_ztunnel_receives_new_pods);
fn during_an_upgrade_the_new_ztunnel_receives_new_pods() -> Result<()> {
    let fixture = Fixture::new()?;
    fixture.set(&["a"])?;
    let [old, new] = [(); 2].map(|()| -> Result<Ztunnel> {
        let ztunnel = Ztunnel::start(&fixture.path)?;
        ensure!(ztunnel.acknowledge()? == fixture.add("a")?);
        ensure!(ztunnel.acknowledge()? == "snapshot");
        Ok(ztunnel)
    });
    let (old, new) = (old?, new?);
    fixture.set(&["a", "b"])?;
    ensure!(new.acknowledge()? == fixture.add("b")?);
    // The old one is still informed which pods end, but only of those that it has received.
    fixture.set(&[])?;
    ensure!(old.acknowledge()? == "delete uid-a");
    let gone = [new.acknowledge()?, new.acknowledge()?];
    ensure!(gone == ["delete uid-a", "delete uid-b"], "{gone:?}");
    Ok(())
}

kernel_test!(what_is_no_ztunnel_is_turned_away);
fn what_is_no_ztunnel_is_turned_away() -> Result<()> {
    let fixture = Fixture::new()?;
    fixture.set(&[])?;
    let of_tomorrow = Ztunnel::connect(&fixture.path)?;
    of_tomorrow.send(&Hello { version: 2 })?;
    ensure!(of_tomorrow.is_closed()?);
    let garbage = Ztunnel::connect(&fixture.path)?;
    garbage.send_bytes(&[0xff; 100])?;
    ensure!(garbage.is_closed()?);
    let talkative = Ztunnel::start(&fixture.path)?;
    ensure!(talkative.acknowledge()? == "snapshot");
    talkative.answer("")?;
    ensure!(talkative.is_closed()?);
    Ok(())
}

kernel_test!(another_servers_socket_is_never_replaced);
fn another_servers_socket_is_never_replaced() -> Result<()> {
    let fixture = Fixture::new()?;
    let bind = || block_on(async { Server::bind(&fixture.path) });
    let error = bind()?.err().context("it is served")?;
    let text = format!("{error:#}");
    ensure!(text.contains("one of them can"), "{text}");
    ensure!(is_answered(&fixture.path));

    // A file of someone else stays; the socket of an agent that was killed does not.
    let path = fixture.dir.path().join("ztunnel.sock");
    let bind = || block_on(async { Server::bind(&path) });
    fs::write(&path, "")?;
    ensure!(bind()?.is_err());
    fs::remove_file(&path)?;
    drop(std::os::unix::net::UnixListener::bind(&path)?);
    ensure!(path.exists());
    drop(bind()??);
    ensure!(!path.exists(), "its file goes with it");
    Ok(())
}
