//! The capabilities of this process.

use procfs::process::Process;

/// Bits and names of linux/capability.h.
const NEEDED: [(u32, &str); 5] = [
    (12, "CAP_NET_ADMIN"),
    (19, "CAP_SYS_PTRACE"),
    (21, "CAP_SYS_ADMIN"),
    (38, "CAP_PERFMON"),
    (39, "CAP_BPF"),
];

/// Checks that this process has the capabilities the agent needs; the error names the missing ones and
/// the remedy.
///
/// # Errors
/// If a capability is missing, or `/proc/self/status` cannot be read.
pub fn capabilities() -> Result<(), String> {
    let status = Process::myself()
        .and_then(|process| process.status())
        .map_err(|error| format!("read /proc/self/status: {error}"))?;
    let missing = missing(status.capeff);
    if missing.is_empty() {
        Ok(())
    } else {
        Err(format!("missing {}: run as root", missing.join(", ")))
    }
}

/// The needed capabilities that are not in an effective set.
fn missing(effective: u64) -> Vec<&'static str> {
    let is_missing = |(bit, _): &&(u32, &str)| effective & 1 << *bit == 0;
    let names = NEEDED.iter().filter(is_missing);
    names.map(|(_, name)| *name).collect()
}

#[cfg(test)]
mod tests;
