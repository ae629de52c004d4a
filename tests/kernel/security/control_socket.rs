//! Who may use the agent's socket, and what hostile clients achieve.

use std::{
    fs,
    io::{Read as _, Write as _},
    os::unix::{
        fs::{MetadataExt as _, PermissionsExt as _},
        net::UnixStream,
    },
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Result, anyhow, ensure};
use lab::{
    agent::Agent, command::output, network::Lab, product::CNI_REQUESTS_PATH, wait::eventually,
};

use super::{contained, descriptors};

kernel_test!(the_socket_is_root_only);
fn the_socket_is_root_only() -> Result<()> {
    let mut lab = Lab::new()?;
    let pod = lab.pod("app", 2)?;
    let agent = Agent::start(lab.places())?;
    let socket = &agent.places.socket;
    let meta = fs::metadata(socket)?;
    ensure!(
        meta.mode() & 0o777 == 0o600 && meta.uid() == 0,
        "{:o}",
        meta.mode()
    );
    // Also where nothing above it keeps people out.
    fs::set_permissions(lab.dir(), fs::Permissions::from_mode(0o755))?;
    let ask = format!(
        "curl -s --unix-socket {} http://a/v1/status",
        socket.display()
    );
    let words: Vec<&str> = ask.split(' ').collect();
    let as_root = output(&words)?;
    ensure!(as_root.status.success(), "{as_root:?}");
    let user = "setpriv --reuid 1000 --regid 1000 --clear-groups --";
    let as_user: Vec<&str> = user.split(' ').chain(words).collect();
    let refused = output(&as_user)?;
    ensure!(
        !refused.status.success() && refused.stdout.is_empty(),
        "{refused:?}"
    );
    // Other users may list the names of the pins, if the mount permits it.
    for pin in walk(&agent.places.pins())? {
        let meta = fs::metadata(&pin)?;
        ensure!(
            meta.mode() & 0o077 == 0 && meta.uid() == 0,
            "{}: {:o}",
            pin.display(),
            meta.mode()
        );
    }
    // A pod has no path to it.
    let out = contained(&pod, &lab, &ask).output()?;
    ensure!(!out.status.success() && out.stdout.is_empty(), "{out:?}");
    Ok(())
}

/// Files below a directory.
fn walk(dir: &Path) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            files.extend(walk(&entry.path())?);
        } else {
            files.push(entry.path());
        }
    }
    Ok(files)
}

/// Sends bytes and reads what comes back until the other end closes.
fn exchange(socket: &Path, bytes: &[u8]) -> Result<(String, Duration)> {
    let start = Instant::now();
    let mut stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(Duration::from_secs(10)))?;
    // It may be closed before all of it is written.
    let _ = stream.write_all(bytes);
    let mut answer = Vec::new();
    let read = stream.read_to_end(&mut answer);
    let took = start.elapsed();
    match read {
        Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
            Err(anyhow!("still open after {took:?}"))
        }
        _ => Ok((String::from_utf8_lossy(&answer).into_owned(), took)),
    }
}

kernel_test!(hostile_clients_of_the_socket);
fn hostile_clients_of_the_socket() -> Result<()> {
    /// More than are served at a time, and wait for that.
    const SILENT: usize = 700;
    let mut lab = Lab::new()?;
    let pod = lab.pod("app", 2)?;
    lab.write_pod("app", &pod, &[])?;
    let agent = Agent::start(lab.places())?;
    agent.places.wait_enrolled("test/app")?;
    let before = descriptors(&agent)?;
    let socket = &agent.places.socket;
    // Garbage.
    for bytes in [
        &b"\0\x01\xff\xfe garbage\r\n\r\n"[..],
        b"GET /v1/../../etc/passwd HTTP/1.1\r\nhost: a\r\n\r\n",
        b"POST /v1/status HTTP/1.1\r\nhost: a\r\ncontent-length: 0\r\n\r\n",
        &[b'a'; 1 << 20],
    ] {
        let (answer, _) = exchange(socket, bytes)?;
        let status = answer.split(' ').nth(1).unwrap_or_default();
        ensure!(
            answer.is_empty() || status.starts_with('4'),
            "{answer:.200}"
        );
    }
    let post = |length: usize, body: &[u8]| {
        let head = format!(
            "POST {CNI_REQUESTS_PATH} HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n"
        );
        exchange(socket, &[head.as_bytes(), body].concat())
    };
    // What is no question; more than there may be; and what does not come.
    let (answer, _) = post(2, b"[]")?;
    ensure!(answer.starts_with("HTTP/1.1 422"), "{answer}");
    let (answer, _) = post(2 << 20, &vec![b' '; 2 << 20])?;
    ensure!(answer.starts_with("HTTP/1.1 413"), "{answer}");
    let (answer, took) = post(100, b"{")?;
    ensure!(
        answer.starts_with("HTTP/1.1 408") && took < Duration::from_secs(5),
        "after {took:?}: {answer}"
    );
    // Many idle connections: a request waits a moment behind them.
    let silent: Vec<UnixStream> = (0..SILENT)
        .map(|_| UnixStream::connect(socket))
        .collect::<std::io::Result<_>>()?;
    thread::sleep(Duration::from_millis(200));
    let most = descriptors(&agent)?;
    ensure!(
        most < before + 512 + 128 + 20,
        "{before} descriptors became {most}"
    );
    let start = Instant::now();
    let status = agent.places.json(&["status", "-o", "json"])?;
    let took = start.elapsed();
    ensure!(status["agent"]["ready"] == true, "{status}");
    ensure!(took < Duration::from_secs(8), "status took {took:?}");
    // The agent's own work does not wait for them.
    let more: Vec<UnixStream> = (0..SILENT / 2)
        .map(|_| UnixStream::connect(socket))
        .collect::<std::io::Result<_>>()?;
    lab.remove_manifest("app")?;
    eventually(Duration::from_secs(2), || {
        ensure!(
            agent.places.map("POD_BY_NETNS")?.is_empty(),
            "the loop hangs"
        );
        Ok(())
    })?;
    drop((silent, more));
    eventually(Duration::from_secs(10), || {
        ensure!(descriptors(&agent)? <= before + 8, "descriptors stay");
        Ok(())
    })
}
