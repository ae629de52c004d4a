//! Programs of cgroups above the pods' that allow none below: attached without BPF_F_ALLOW_MULTI.

use std::{fs::File, os::fd::AsFd as _, path::Path};

use aya_obj::generated::bpf_attach_type;

use super::sys;

/// Why such a program refuses others, and does not run where there are others, and what to do.
pub(super) const REASON: &str = "it was attached without BPF_F_ALLOW_MULTI, so that the kernel runs it only where no cgroup below has a program for this hook. Cilium before 1.14 attaches so, and later versions keep that until the node is restarted";

/// The program that forbids to attach others to this cgroup, as a sentence.
pub(super) fn forbidden_by(cgroup: &Path, attach_type: bpf_attach_type) -> Option<String> {
    cgroup.ancestors().find_map(|above| {
        let directory = File::open(above).ok()?;
        let there = sys::attached_programs(directory.as_fd(), attach_type).ok()?;
        let id = there.ids.first().filter(|_| there.is_exclusive)?;
        let name = sys::program_name(*id);
        let above = above.display();
        Some(format!(
            "program {name} (id {id}) of {above} forbids it: {REASON}"
        ))
    })
}

/// What failed, with the program that forbids it, if one does.
pub(super) fn failed_attachment(what: &str, cgroup: &Path, attach_type: bpf_attach_type) -> String {
    let what = format!("attach {what} to cgroup {}", cgroup.display());
    match forbidden_by(cgroup, attach_type) {
        Some(why) => format!("{what} ({why})"),
        None => what,
    }
}
