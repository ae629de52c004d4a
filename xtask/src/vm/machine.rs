//! Boots a guest in QEMU and reads its output.
//!
//! The guest's clock counts its instructions, one nanosecond each. In its own time the guest is a slow
//! machine with one processor, whatever the load of the host, so that the tests' timeouts hold.
//! Software emulation, because nested KVM is often missing.

use std::{
    fs,
    io::{BufRead as _, BufReader},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::mpsc,
    thread,
    time::Duration,
};

use anyhow::{Context as _, Result};

use crate::arch::Arch;

/// Longest time without output: ten times what the longest test takes on an idle host.
const OUTPUT_TIMEOUT: Duration = Duration::from_secs(1800);

/// How much of the kernel's console is shown when a guest ends early.
const CONSOLE_LINES: usize = 30;

/// QEMU's own processor, with what TLS needs to be as fast as elsewhere: `cluster::large_pods` reads 220 MB. A model with
/// everything QEMU emulates makes the other tests a fifth slower.
const AMD64: &str = "qemu64,+ssse3,+sse4.1,+sse4.2,+aes,+pclmulqdq";

/// A guest to boot.
#[derive(Debug)]
pub struct Machine<'a> {
    /// What processor it has.
    pub arch: Arch,
    /// The kernel.
    pub image: &'a Path,
    /// Its initramfs.
    pub initramfs: &'a Path,
    /// Parameters for the kernel beside those of this module.
    pub append: &'a str,
    /// Where its console is written to.
    pub console: PathBuf,
}

impl Machine<'_> {
    /// Runs the guest to its end and passes on each line of its output. The error shows the console if
    /// there was no output for too long.
    pub fn run(&self, mut on_line: impl FnMut(&str)) -> Result<()> {
        let _ = fs::remove_file(&self.console);
        let mut qemu = Qemu(self.command().spawn().context("run QEMU")?);
        let stdout = qemu.0.stdout.take().context("QEMU's stdout")?;
        let (sender, receiver) = mpsc::channel();
        let reader = thread::spawn(move || {
            for line in BufReader::new(stdout).split(b'\n').map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        loop {
            match receiver.recv_timeout(OUTPUT_TIMEOUT) {
                Ok(line) => on_line(String::from_utf8_lossy(&line).trim_end()),
                Err(mpsc::RecvTimeoutError::Disconnected) => break,
                Err(mpsc::RecvTimeoutError::Timeout) => {
                    drop(qemu);
                    let _ = reader.join();
                    anyhow::bail!(
                        "no output of the guest for {} s; its console:\n{}",
                        OUTPUT_TIMEOUT.as_secs(),
                        self.console_tail()
                    );
                }
            }
        }
        let _ = reader.join();
        Ok(())
    }

    /// The end of the console.
    pub fn console_tail(&self) -> String {
        let console = fs::read(&self.console).unwrap_or_default();
        let console = String::from_utf8_lossy(&console);
        let lines: Vec<&str> = console.lines().map(str::trim_end).collect();
        lines[lines.len().saturating_sub(CONSOLE_LINES)..].join("\n")
    }

    fn command(&self) -> Command {
        let mut command = Command::new(format!("qemu-system-{}", self.arch.machine()));
        // A machine of QEMU's own has one serial port on arm64; the second is a card. Linux hands parameters that it does
        // not recognize to init as variables.
        let (machine, console, output): (&[&str], _, _) = match self.arch {
            Arch::Amd64 => (&["-cpu", AMD64], "ttyS0", "ttyS1"),
            Arch::Arm64 => (
                &["-machine", "virt", "-cpu", "cortex-a72"],
                "ttyAMA0",
                "ttyS0",
            ),
        };
        command
            .args(machine)
            .args(["-accel", "tcg", "-icount", "shift=0,sleep=off"])
            .args(["-rtc", "clock=vm", "-smp", "1", "-m", "3G"])
            .args(["-nodefaults", "-no-user-config", "-display", "none"])
            .args(["-no-reboot", "-append"])
            .arg(format!(
                "console={console} panic=-1 quiet OUTPUT=/dev/{output} {}",
                self.append
            ))
            .arg("-kernel")
            .arg(self.image)
            .arg("-initrd")
            .arg(self.initramfs)
            .arg("-serial")
            .arg(format!("file:{}", self.console.display()));
        match self.arch {
            Arch::Amd64 => command.args(["-serial", "stdio"]),
            Arch::Arm64 => command.args([
                "-chardev",
                "stdio,id=output",
                "-device",
                "pci-serial,chardev=output",
            ]),
        };
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        command
    }
}

/// Killed when dropped.
struct Qemu(Child);

impl Drop for Qemu {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
