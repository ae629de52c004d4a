//! Long steps that run side by side: a line when each starts and ends, and in between every few
//! seconds a line with what is still running.

use std::{
    io::{BufRead as _, BufReader, Read},
    process::{Child, Command, Stdio},
    sync::{Arc, Mutex, mpsc},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};

/// How often the steps that still run are listed.
const INTERVAL: Duration = Duration::from_secs(15);

/// A step that runs: its name, and how many crates it has begun to compile.
type Running = Arc<Mutex<Vec<(String, usize)>>>;

/// The steps of one command.
#[derive(Debug)]
pub struct Steps {
    running: Running,
    // Dropped to end the thread that prints.
    _end: mpsc::Sender<()>,
}

impl Steps {
    /// Starts with none.
    pub fn new() -> Self {
        let running = Running::default();
        let (end, ended) = mpsc::channel();
        let listed = Arc::clone(&running);
        let began = Instant::now();
        thread::spawn(move || {
            while let Err(mpsc::RecvTimeoutError::Timeout) = ended.recv_timeout(INTERVAL) {
                let steps = listed.lock().expect("never poisoned");
                let list: Vec<String> = steps.iter().map(describe).collect();
                if !list.is_empty() {
                    let seconds = began.elapsed().as_secs();
                    eprintln!("setup: {seconds} s: {}", list.join("; "));
                }
            }
        });
        Self { running, _end: end }
    }

    /// Runs a command to its end. Its output is shown only if it fails.
    pub fn run(&self, name: &str, estimate: &str, command: &mut Command) -> Result<()> {
        self.start(name, estimate, command)?.finish()
    }

    /// Starts a command beside others.
    pub fn start(&self, name: &str, estimate: &str, command: &mut Command) -> Result<Step> {
        eprintln!("setup: {name} ({estimate})");
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .with_context(|| format!("run {}", command.get_program().display()))?;
        let stderr = child.stderr.take().context("the stderr of a step")?;
        self.running
            .lock()
            .expect("never poisoned")
            .push((name.to_owned(), 0));
        let (counted, own) = (Arc::clone(&self.running), name.to_owned());
        Ok(Step {
            name: name.to_owned(),
            began: Instant::now(),
            child,
            output: Some(thread::spawn(move || read(stderr, &counted, &own))),
            running: Arc::clone(&self.running),
        })
    }
}

/// A command that runs in the background. Dropping it ends it.
#[derive(Debug)]
pub struct Step {
    name: String,
    began: Instant,
    child: Child,
    output: Option<JoinHandle<String>>,
    running: Running,
}

impl Step {
    /// Waits for its end; the error carries what it printed.
    pub fn finish(mut self) -> Result<()> {
        let output = self.output.take().map(JoinHandle::join);
        let status = self.child.wait()?;
        if !status.success() {
            let output = output.and_then(Result::ok).unwrap_or_default();
            bail!("{} failed ({status}):\n{output}", self.name);
        }
        self.done();
        Ok(())
    }

    /// Waits for its end, where another command does what this one could not.
    pub fn wait(mut self) {
        let _ = self.child.wait();
        self.done();
    }

    fn done(&self) {
        let seconds = self.began.elapsed().as_secs();
        eprintln!("setup: {}: done after {seconds} s", self.name);
    }
}

impl Drop for Step {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let mut running = self.running.lock().expect("never poisoned");
        running.retain(|(name, _)| *name != self.name);
    }
}

/// Reads what a step prints, and counts the crates that cargo compiles in it.
fn read(stderr: impl Read, running: &Running, name: &str) -> String {
    let mut output = String::new();
    for line in BufReader::new(stderr).lines().map_while(Result::ok) {
        if line.trim_start().starts_with("Compiling ") {
            let mut running = running.lock().expect("never poisoned");
            let own = running.iter_mut().find(|(other, _)| other == name);
            if let Some((_, crates)) = own {
                *crates += 1;
            }
        } else {
            output += &line;
            output.push('\n');
        }
    }
    output
}

fn describe((name, crates): &(String, usize)) -> String {
    match crates {
        0 => name.clone(),
        crates => format!("{name}, {crates} crates so far"),
    }
}

#[cfg(test)]
mod tests;
