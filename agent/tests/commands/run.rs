//! Runs the binary.

use std::{
    io::Write as _,
    process::{Command, Output, Stdio},
};

use serde_json::Value;

/// The binary with arguments, and nothing of the caller's environment that changes it.
pub fn command(words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_sidetrack"));
    command.args(words).env_remove("SIDETRACK_BPFFS");
    command
}

/// Runs it with this on standard input.
pub fn piped(words: &[&str], stdin: &str) -> Ended {
    let mut command = command(words);
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = command.spawn().expect("the binary starts");
    // A command that refuses its arguments does not read.
    let _ = child
        .stdin
        .take()
        .expect("piped")
        .write_all(stdin.as_bytes());
    child.wait_with_output().expect("it ends").into()
}

/// Runs it without input.
pub fn run(words: &[&str]) -> Ended {
    piped(words, "")
}

/// A command that has ended.
#[derive(Debug)]
pub struct Ended {
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

impl From<Output> for Ended {
    fn from(output: Output) -> Self {
        Self {
            code: output.status.code(),
            stdout: String::from_utf8(output.stdout).expect("UTF-8"),
            stderr: String::from_utf8(output.stderr).expect("UTF-8"),
        }
    }
}

impl Ended {
    /// What it printed, if it succeeded.
    pub fn text(&self) -> &str {
        assert_eq!(self.code, Some(0), "{self:?}");
        &self.stdout
    }

    /// What it printed as JSON, if it succeeded.
    pub fn json(&self) -> Value {
        serde_json::from_str(self.text()).expect("JSON")
    }

    /// Its error, if it ended with this exit code.
    pub fn error(&self, code: i32) -> &str {
        assert_eq!(self.code, Some(code), "{self:?}");
        &self.stderr
    }
}

/// A Pod or a workload with a sidecar; `fields` are added to its template's metadata.
pub fn workload(kind: &str, name: &str, fields: &str) -> String {
    let spec = "spec: {containers: [{name: app}, {name: istio-proxy, args: [proxy, sidecar]}]}";
    match kind {
        "Pod" => format!("{{kind: Pod, metadata: {{name: {name}, {fields}}}, {spec}}}"),
        _ => format!(
            "{{kind: {kind}, metadata: {{name: {name}}}, spec: {{template: {{metadata: {{{fields}}}, {spec}}}}}}}"
        ),
    }
}
