//! The output of a guest, parsed, and the problems in it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// The check of doctor that comes last, on kernels with every required facility.
const OWN_PROGRAMS: &str = "sidetrack's own programs";

/// What tests print that cannot run on a kernel, or not completely.
const SKIPPED: &str = ": skipped, ";

/// One kernel's run.
#[derive(Debug, Default, Serialize)]
pub struct Session {
    /// `uname -r`, as doctor reports it.
    pub kernel: String,
    /// Required facilities that doctor did not find.
    pub missing: Vec<String>,
    /// Optional facilities that doctor did not find.
    pub lost: Vec<String>,
    /// Tests by group.
    pub groups: BTreeMap<String, Group>,
    /// The test that runs, or was running when the guest ended.
    pub running: Option<String>,
    /// Why tests were skipped, and how many.
    pub skipped: BTreeMap<String, usize>,
    /// The output of an agent that is started without pods, and of `sidetrack status`.
    pub agent: String,
    /// Whether it started, and had no problem.
    pub started: Option<bool>,
    /// What remains of it.
    pub left: Vec<String>,
    /// Exit status of the tests; 0 on a refused kernel.
    pub status: Option<i32>,
    /// Why the running test is skipped, or a part of it.
    #[serde(skip)]
    skip: Option<String>,
    #[serde(skip)]
    part: Part,
    #[serde(skip)]
    doctor: String,
    #[serde(skip)]
    doctor_read: bool,
}

/// The tests of one file.
#[derive(Debug, Default, Serialize)]
pub struct Group {
    /// How many passed.
    pub passed: usize,
    /// How many of these said that they skipped something.
    pub skipped: usize,
    /// The failed ones, with their output.
    pub failed: Vec<(String, String)>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Part {
    #[default]
    Before,
    Doctor,
    Tests,
    Agent,
    Remains,
}

#[derive(Deserialize)]
struct Event {
    #[serde(rename = "type")]
    kind: String,
    event: String,
    name: Option<String>,
    stdout: Option<String>,
}

#[derive(Deserialize)]
struct Doctor {
    kernel: String,
    checks: Vec<Check>,
}

#[derive(Deserialize)]
struct Check {
    facility: String,
    ok: Option<bool>,
    optional: bool,
}

impl Session {
    /// Parses the next line.
    pub fn read_line(&mut self, line: &str) {
        if let Some(word) = line.strip_prefix('@') {
            self.begin_part(word);
            return;
        }
        match self.part {
            Part::Before => {}
            Part::Doctor => self.doctor += line,
            Part::Tests => {
                if let Ok(event) = serde_json::from_str(line) {
                    self.test(event);
                } else if let Some((_, reason)) = line.split_once(SKIPPED) {
                    self.skip = Some(reason.to_owned());
                }
            }
            Part::Agent => {
                self.agent += line;
                self.agent.push('\n');
            }
            Part::Remains => self.left.push(line.to_owned()),
        }
    }

    fn begin_part(&mut self, word: &str) {
        if self.part == Part::Doctor {
            self.read_doctor();
        }
        match word {
            "doctor" => self.part = Part::Doctor,
            "tests" => self.part = Part::Tests,
            "agent" => self.part = Part::Agent,
            "remains" => self.part = Part::Remains,
            _ => {
                let (what, status) = word.split_once(' ').unwrap_or_default();
                let status = status.parse().ok();
                match what {
                    "started" => self.started = status.map(|status: i32| status == 0),
                    "ended" => self.status = status,
                    _ => {}
                }
                self.part = Part::Before;
            }
        }
    }

    fn read_doctor(&mut self) {
        let Ok(doctor) = serde_json::from_str::<Doctor>(&self.doctor) else {
            return;
        };
        self.doctor_read = true;
        self.kernel = doctor.kernel;
        for check in doctor.checks {
            // Unknown is what was not tried because something else is missing.
            if check.ok == Some(false) {
                let list = if check.optional {
                    &mut self.lost
                } else {
                    &mut self.missing
                };
                list.push(check.facility);
            }
        }
    }

    fn test(&mut self, event: Event) {
        let (Some(name), "test") = (event.name, event.kind.as_str()) else {
            return;
        };
        if event.event == "started" {
            self.running = Some(name);
            self.skip = None;
            return;
        }
        self.running = None;
        let (group, _) = name.split_once("::").unwrap_or(("other", ""));
        let group = self.groups.entry(group.to_owned()).or_default();
        if event.event == "ok" {
            group.passed += 1;
            if let Some(reason) = self.skip.take() {
                group.skipped += 1;
                *self.skipped.entry(reason).or_default() += 1;
            }
        } else {
            let output = event.stdout.unwrap_or_default();
            group.failed.push((name, output));
        }
    }

    /// Whether sidetrack refuses this kernel.
    pub fn refused(&self) -> bool {
        !self.missing.is_empty()
    }

    /// The problems of this run.
    pub fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        if !self.doctor_read {
            problems.push(format!("no output of doctor: {}", self.doctor.trim()));
        } else if self.refused() {
            // A refusal is no failure if a facility is missing and the agent names it.
            for facility in &self.missing {
                if facility == OWN_PROGRAMS {
                    problems.push(format!(
                        "has every facility, but does not load {OWN_PROGRAMS}"
                    ));
                } else if !self.agent.contains(facility.as_str()) {
                    problems.push(format!(
                        "the agent does not name {facility}: {}",
                        self.agent.trim()
                    ));
                }
            }
        } else if self.status != Some(0) && self.failed().next().is_none() {
            problems.push("the tests did not finish".to_owned());
        }
        if self.doctor_read && self.started == Some(self.refused()) {
            let (verdict, start) = match self.refused() {
                true => ("refuses", "started"),
                false => ("accepts", "did not start, or has problems,"),
            };
            problems.push(format!(
                "the agent {start} on a kernel that doctor {verdict}: {}",
                self.agent.trim()
            ));
        }
        if !self.left.is_empty() {
            problems.push(format!("the agent left behind: {}", self.left.join(", ")));
        }
        if self.status.is_none() {
            let during = self
                .running
                .as_ref()
                .map_or_else(String::new, |test| format!(" during {test}"));
            problems.push(format!("the guest ended early{during}"));
        }
        problems.extend(
            self.failed()
                .map(|(name, output)| format!("{name}: {output}")),
        );
        problems
    }

    fn failed(&self) -> impl Iterator<Item = &(String, String)> {
        self.groups.values().flat_map(|group| &group.failed)
    }
}

#[cfg(test)]
mod tests;
