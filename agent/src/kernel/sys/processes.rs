//! Memory of this process.

/// Returns freed memory to the kernel. Loading the programs parses megabytes of BTF, and glibc would keep
/// that memory, where it counts as the agent's.
pub fn trim_heap() {
    // SAFETY: takes a number.
    #[cfg(target_env = "gnu")]
    unsafe {
        libc::malloc_trim(0);
    }
}
