//! Long steps: a line when each starts and ends.

use std::{
    process::{Child, Command, Stdio},
    time::Instant,
};

use anyhow::{Context as _, Result, bail};

/// Runs a command to its end. Its output is shown only if it fails.
pub fn run(name: &str, estimate: &str, command: &mut Command) -> Result<()> {
    let began = begin(name, estimate);
    command.stdin(Stdio::null()).stdout(Stdio::null());
    let ended = command
        .output()
        .with_context(|| format!("run {}", command.get_program().display()))?;
    if !ended.status.success() {
        let output = String::from_utf8_lossy(&ended.stderr);
        bail!("{name} failed ({}):\n{output}", ended.status);
    }
    end(name, began);
    Ok(())
}

fn begin(name: &str, estimate: &str) -> Instant {
    eprintln!("setup: {name} ({estimate})");
    Instant::now()
}

fn end(name: &str, began: Instant) {
    eprintln!("setup: {name}: done after {} s", began.elapsed().as_secs());
}

/// A command that runs beside others, and whose result another one repeats. Dropping it ends it.
#[derive(Debug)]
pub struct Background {
    name: &'static str,
    began: Instant,
    child: Child,
}

impl Background {
    /// Starts it.
    pub fn start(name: &'static str, estimate: &str, command: &mut Command) -> Result<Self> {
        let began = begin(name, estimate);
        let child = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .with_context(|| format!("run {}", command.get_program().display()))?;
        Ok(Self { name, began, child })
    }

    /// Waits for its end.
    pub fn wait(mut self) {
        let _ = self.child.wait();
        end(self.name, self.began);
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_shows_the_output() {
        let mut command = Command::new("sh");
        command.args(["-c", "echo no space left >&2; exit 3"]);
        let failed = run("x", "at once", &mut command).expect_err("it fails");
        assert!(failed.to_string().contains("no space left"), "{failed}");
    }
}
