//! Programs of others on the pods' cgroup. They stay untouched and are reported.

use std::{
    collections::{BTreeSet, HashMap},
    fs::File,
    os::fd::AsFd as _,
};

use super::{Datapath, attachments::Attachments, exclusive, sys};

/// What is said of programs of others, as sentences.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Foreign {
    /// About those on the pods' cgroup: they see the same connections.
    pub problems: Vec<String>,
    /// About those on the cgroups above.
    pub notes: Vec<String>,
}

impl Datapath {
    /// Looks for programs that are not this agent's.
    pub fn foreign_programs(&mut self) -> Foreign {
        let own = self.dns_programs().collect();
        let mut foreign = Foreign::default();
        // A cgroup that is gone is a problem of its own.
        if let Ok(cgroup) = File::open(&self.attachments.cgroup) {
            self.attachments.report_foreign(&cgroup, &own, &mut foreign);
        }
        foreign
    }
}

impl Attachments {
    /// Adds those that are not this agent's; `own` are those of DNS capture.
    fn report_foreign(&mut self, cgroup: &File, own: &BTreeSet<u32>, foreign: &mut Foreign) {
        for attached in &self.hooks {
            let hook = attached.hook;
            let ids = match sys::attached_programs(cgroup.as_fd(), hook.attach_type) {
                Ok(attached) => attached.ids,
                Err(error) => {
                    let text = format!("query the programs attached to {}: {error}", hook.name);
                    foreign.problems.push(text);
                    continue;
                }
            };
            let position_of_own = ids.iter().position(|id| *id == attached.program_id);
            for (position, id) in ids.iter().enumerate() {
                if *id == attached.program_id || own.contains(id) {
                    continue;
                }
                let name = program_name(&mut self.program_names, *id);
                let before =
                    attached.link.is_some() && position_of_own.is_none_or(|at| position < at);
                foreign.problems.push(format!(
                    "program {name} (id {id}) is attached to hook {} of {} as well and runs {} sidetrack's: {}; sidetrack leaves it alone, `bpftool cgroup show {}` lists it",
                    hook.name,
                    self.cgroup.display(),
                    if before { "before" } else { "after" },
                    consequence(hook.name, before),
                    self.cgroup.display(),
                ));
            }
        }
        self.report_above(own, foreign);
    }

    /// Those of the cgroups above run after sidetrack's. A socket load balancer is one.
    fn report_above(&mut self, own: &BTreeSet<u32>, foreign: &mut Foreign) {
        for above in self.cgroup.ancestors().skip(1) {
            // The mount of cgroup2 ends where this file does.
            let (true, Ok(cgroup)) = (above.join("cgroup.procs").exists(), File::open(above))
            else {
                break;
            };
            for attached in &self.hooks {
                let hook = attached.hook;
                // A cgroup that cannot be asked may be of another hierarchy.
                let there = sys::attached_programs(cgroup.as_fd(), hook.attach_type);
                let there = there.unwrap_or_default();
                for id in there.ids {
                    if own.contains(&id) {
                        continue;
                    }
                    let name = program_name(&mut self.program_names, id);
                    let (hook, above) = (hook.name, above.display());
                    if there.is_exclusive && attached.link.is_some() {
                        foreign.problems.push(format!(
                            "program {name} (id {id}) is attached to hook {hook} of {above}, above the pods' cgroup, and runs for none of these pods: {}",
                            exclusive::REASON
                        ));
                        continue;
                    }
                    foreign.notes.push(format!(
                        "program {name} (id {id}) is attached to hook {hook} of {above}, above the pods' cgroup, and runs after sidetrack's: {}",
                        consequence_above(hook),
                    ));
                }
            }
        }
    }
}

fn program_name(known: &mut HashMap<u32, String>, id: u32) -> &str {
    known.entry(id).or_insert_with(|| sys::program_name(id))
}

/// What a program above means.
fn consequence_above(hook: &str) -> &'static str {
    match hook {
        "connect4" | "connect6" => {
            "if it translates addresses, the sidecar still gets those that the application dialed, and what the proxy dials is decided by the translated address"
        }
        _ => consequence(hook, false),
    }
}

/// What it means that another program is there.
fn consequence(hook: &str, before: bool) -> &'static str {
    match (hook, before) {
        ("connect4" | "connect6", true) => {
            "the decision uses the address that it leaves, and those it refuses fail"
        }
        ("connect4" | "connect6", false) => {
            "it sees redirected connections on their way to the sidecar, and may send them elsewhere or refuse them"
        }
        ("sock_release", _) => "it does not concern redirected connections",
        ("setsockopt", false) => "it may change which socket options an app can set",
        ("getsockopt", false) => "it may change the original destination that the sidecar gets",
        ("sockops", _) => {
            "which callbacks a socket gets is up to both; should original destinations be wrong, it is the first to look at"
        }
        ("getpeername4" | "getpeername6", false) => {
            "it may change the peer address that an app or the sidecar gets"
        }
        ("getsockname4" | "getsockname6", false) => {
            "it may change the own address that an app gets"
        }
        _ => "sidetrack's answer comes after its own and stands",
    }
}
