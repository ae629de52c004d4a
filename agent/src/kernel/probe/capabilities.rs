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
mod tests {
    use super::missing;

    #[test]
    fn missing_capabilities_are_named() {
        assert!(missing(u64::MAX).is_empty());
        assert_eq!(
            missing(0),
            [
                "CAP_NET_ADMIN",
                "CAP_SYS_PTRACE",
                "CAP_SYS_ADMIN",
                "CAP_PERFMON",
                "CAP_BPF"
            ]
        );
        // What Docker gives a container by default (`CapEff` of its /proc/self/status).
        assert_eq!(missing(0x0000_0000_a804_25fb).len(), 5);
        assert_eq!(missing(!(1 << 19)), ["CAP_SYS_PTRACE"]);
        // All of Linux 5.7, before CAP_PERFMON and CAP_BPF.
        assert_eq!(missing(0x0000_003f_ffff_ffff), ["CAP_PERFMON", "CAP_BPF"]);
    }
}
