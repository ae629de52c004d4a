//! Commands in the container of an agent, by `pods/exec`.

use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, bail};
use k8s_openapi::{api::core::v1::Pod, apimachinery::pkg::apis::meta::v1::Status};
use kube::{
    Api, Client, Error,
    api::{AttachParams, AttachedProcess},
    client::UpgradeConnectionError,
};
use sidetrack_policy::text::{escaped_lines, printable};
use tokio::{
    io::{
        AsyncBufRead, AsyncBufReadExt as _, AsyncRead, AsyncReadExt as _, AsyncWrite,
        AsyncWriteExt as _, BufReader,
    },
    sync::watch,
};

use crate::{
    agents::Agent,
    denied::{Denied, plain},
};

/// The agent's program in its image.
const PROGRAM: &str = "sidetrack";
/// The most output of one command. A node of 500 pods answers with less than one MiB.
pub const MAX_OUTPUT_BYTES: u64 = 8 << 20;
/// The longest line of a command that runs on.
const MAX_LINE: u64 = 256 << 10;
/// The most of stderr.
pub const MAX_ERROR_BYTES: u64 = 1 << 20;
/// Room between the connection and the reader.
const BUFFER: usize = 64 << 10;

/// A command that has ended.
#[derive(Debug)]
pub struct Finished {
    /// Its output.
    pub stdout: Vec<u8>,
    /// Its errors.
    pub stderr: Vec<u8>,
    /// Its exit code.
    pub code: i32,
}

/// A container.
#[derive(Clone, Copy, Debug)]
pub struct Target<'a> {
    /// The pod's namespace.
    pub namespace: &'a str,
    /// The pod.
    pub pod: &'a str,
    /// The container.
    pub container: &'a str,
}

impl<'a> Target<'a> {
    fn of(agent: &'a Agent) -> Self {
        Self {
            namespace: &agent.namespace,
            pod: &agent.pod,
            container: "agent",
        }
    }
}

/// Gives up after a time.
pub async fn within<T>(time: Duration, asked: impl Future<Output = Result<T>>) -> Result<T> {
    match tokio::time::timeout(time, asked).await {
        Ok(answer) => answer,
        Err(_) => Err(anyhow!("no answer within {time:?}")),
    }
}

/// Runs a command of the agent and keeps its output.
pub async fn collect(client: &Client, agent: &Agent, words: &[&str]) -> Result<Finished> {
    let command = [&[PROGRAM], words].concat();
    collect_in(client, &Target::of(agent), &command).await
}

/// Runs a command in a container and keeps its output.
pub async fn collect_in(
    client: &Client,
    target: &Target<'_>,
    command: &[&str],
) -> Result<Finished> {
    let mut process = start(client, target, command, false).await?;
    let (stdout, stderr) = (process.stdout(), process.stderr());
    let (stdout, stderr) = tokio::try_join!(
        read(stdout, MAX_OUTPUT_BYTES),
        read(stderr, MAX_ERROR_BYTES)
    )?;
    Ok(Finished {
        stdout,
        stderr,
        code: code(process).await?,
    })
}

/// A command whose output is still to come.
pub struct Running(AttachedProcess);

impl Running {
    /// Starts a command that has a standard input until this is dropped, from which nothing comes.
    pub async fn start(client: &Client, agent: &Agent, words: &[&str]) -> Result<Self> {
        let command = [&[PROGRAM], words].concat();
        let target = Target::of(agent);
        start(client, &target, &command, true).await.map(Self)
    }

    /// Copies the output as it comes, to the end, for a terminal. Returns the exit code.
    pub async fn copy(
        mut self,
        out: impl AsyncWrite + Unpin,
        errors: impl AsyncWrite + Unpin,
    ) -> Result<i32> {
        let (stdout, stderr) = (self.0.stdout(), self.0.stderr());
        let errors = async {
            if let Some(mut stderr) = stderr
                && copy(Some(&mut stderr), errors).await.is_err()
            {
                // A reader of errors that has gone away is no failure.
                let _ = tokio::io::copy(&mut stderr, &mut tokio::io::sink()).await;
            }
            Ok(())
        };
        tokio::try_join!(copy(stdout, out), errors)?;
        code(self.0).await
    }
}

/// Runs a command that ends on a message on its standard input, and hands out its lines as they come. It gets that
/// message when `end` becomes true, and by the API server when this is dropped. `silence` is how long no line may come.
///
/// Returns what it has written to stderr, and its exit code.
pub async fn attend(
    client: &Client,
    agent: &Agent,
    words: &[&str],
    silence: Duration,
    mut end: watch::Receiver<bool>,
    mut each: impl FnMut(&str) -> Result<()>,
) -> Result<Finished> {
    let command = [&[PROGRAM], words].concat();
    let target = Target::of(agent);
    let started = start(client, &target, &command, true);
    let mut process = within(silence, started).await?;
    let (stdin, stdout, stderr) = (process.stdin(), process.stdout(), process.stderr());
    let lines = async {
        let mut output = BufReader::new(stdout.context("the output of the command")?);
        while let Some(line) = within(silence, next_line(&mut output)).await? {
            each(&line)?;
        }
        anyhow::Ok(())
    };
    let ended = async {
        let mut stdin = stdin;
        if end.wait_for(|end| *end).await.is_ok()
            && let Some(stdin) = &mut stdin
        {
            // A line, because older protocols cannot end standard input alone.
            stdin.write_all(b"\n").await?;
            stdin.flush().await?;
        }
        std::future::pending::<Result<()>>().await
    };
    let output = async { tokio::try_join!(lines, read(stderr, MAX_ERROR_BYTES)) };
    let (_, stderr) = tokio::select! {
        output = output => output?,
        result = ended => return result.and_then(|()| bail!("standard input ended")),
    };
    Ok(Finished {
        stdout: Vec::new(),
        stderr,
        code: code(process).await?,
    })
}

impl Finished {
    /// What it says is wrong.
    pub fn complaint(&self) -> String {
        let said = self.remark();
        let said = said.map_or_else(String::new, |line| format!(": {line}"));
        format!("exited with {}{said}", self.code)
    }

    /// The first line of stderr.
    pub fn remark(&self) -> Option<String> {
        let errors = String::from_utf8_lossy(&self.stderr);
        let first = errors.lines().find(|line| !line.trim().is_empty());
        first.map(printable)
    }
}

async fn start(
    client: &Client,
    target: &Target<'_>,
    command: &[&str],
    stdin: bool,
) -> Result<AttachedProcess> {
    let api: Api<Pod> = Api::namespaced(client.clone(), target.namespace);
    let parameters = AttachParams::default()
        .container(target.container)
        .stdin(stdin)
        .max_stdout_buf_size(BUFFER)
        .max_stderr_buf_size(BUFFER);
    let started = api
        .exec(target.pod, command.iter().copied(), &parameters)
        .await;
    started.map_err(|error| refused(target, error))
}

/// Why a command did not start. The API server's answer to a refused upgrade has only its code.
fn refused(target: &Target<'_>, error: Error) -> anyhow::Error {
    let Target {
        namespace,
        pod,
        container,
    } = target;
    match error {
        Error::UpgradeConnection(UpgradeConnectionError::ProtocolSwitch(code)) => {
            let advice = match code.as_u16() {
                401 => "log in again: the API server does not accept the credentials".to_owned(),
                403 => format!("it takes the right to create pods/exec in namespace {namespace}"),
                404 => format!("pod {namespace}/{pod} is gone; try again"),
                _ => format!(
                    "kubectl exec -n {namespace} {pod} -c {container} with a command shows more"
                ),
            };
            let refused = format!("exec refused ({code}): {advice}");
            match code.as_u16() {
                401 | 403 => Denied(refused).into(),
                _ => anyhow!(refused),
            }
        }
        error => plain(error).context("exec failed"),
    }
}

async fn read(from: Option<impl AsyncRead + Unpin>, most: u64) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    if let Some(from) = from {
        from.take(most + 1).read_to_end(&mut bytes).await?;
    }
    if bytes.len() as u64 > most {
        bail!("its answer is longer than {} MiB", most >> 20);
    }
    Ok(bytes)
}

/// The next line of what may be anything; none at the end.
async fn next_line(from: &mut (impl AsyncBufRead + Unpin)) -> Result<Option<String>> {
    let mut line = Vec::new();
    from.take(MAX_LINE).read_until(b'\n', &mut line).await?;
    if line.len() as u64 == MAX_LINE && line.last() != Some(&b'\n') {
        bail!("it has written a line of more than {} KiB", MAX_LINE >> 10);
    }
    let text = String::from_utf8_lossy(&line);
    Ok((!line.is_empty()).then(|| text.trim_end_matches(['\n', '\r']).to_owned()))
}

/// Copies and flushes at once what there is, so that a live command's lines are shown as they come. A node's word is
/// foreign text, of which a terminal must obey nothing.
async fn copy(from: Option<impl AsyncRead + Unpin>, mut to: impl AsyncWrite + Unpin) -> Result<()> {
    let Some(mut from) = from else {
        return Ok(());
    };
    let mut buffer = vec![0; BUFFER];
    let mut text = Vec::new();
    loop {
        let length = from.read(&mut buffer).await?;
        text.extend_from_slice(&buffer[..length]);
        // The rest of a character may be still to come.
        let whole = match std::str::from_utf8(&text) {
            Err(error) if error.error_len().is_none() && length > 0 => error.valid_up_to(),
            _ => text.len(),
        };
        let shown = escaped_lines(&String::from_utf8_lossy(&text[..whole]));
        text.drain(..whole);
        to.write_all(shown.as_bytes()).await?;
        to.flush().await?;
        if length == 0 {
            return Ok(());
        }
    }
}

/// The exit code of a command whose output has been read.
async fn code(mut process: AttachedProcess) -> Result<i32> {
    let status = match process.take_status() {
        Some(status) => status.await,
        None => None,
    };
    let ended = process.join().await;
    match (status, ended) {
        (Some(status), _) => code_of(&status),
        (None, Err(error)) if !is_end(&error) => {
            bail!("the connection broke before the command ended: {error}")
        }
        (None, _) => bail!("the connection ended before the command did"),
    }
}

/// Whether the other side has just gone away.
fn is_end(error: &(dyn std::error::Error + 'static)) -> bool {
    let mut causes = std::iter::successors(Some(error), |error| error.source());
    causes.any(|cause| {
        let cause = cause.downcast_ref::<std::io::Error>();
        cause.is_some_and(|cause| cause.kind() == std::io::ErrorKind::UnexpectedEof)
    })
}

fn code_of(status: &Status) -> Result<i32> {
    if status.status.as_deref() == Some("Success") {
        return Ok(0);
    }
    let causes = status
        .details
        .as_ref()
        .and_then(|details| details.causes.as_ref());
    let code = causes
        .into_iter()
        .flatten()
        .find(|cause| cause.reason.as_deref() == Some("ExitCode"))
        .and_then(|cause| cause.message.as_deref()?.parse().ok());
    code.ok_or_else(|| {
        let message = status.message.as_deref().unwrap_or("no reason is given");
        anyhow!("the command did not start: {}", printable(message))
    })
}

#[cfg(test)]
mod tests;
