//! The output of a guest, parsed, and the problems in it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// What tests print that cannot run on a kernel, or not completely.
const SKIPPED: &str = ": skipped, ";

/// One kernel's run.
#[derive(Debug, Default, Serialize)]
pub struct Session {
    /// `uname -r`.
    pub kernel: String,
    /// Required facilities that doctor did not find.
    pub missing: Vec<String>,
    /// Optional facilities that doctor did not find.
    pub lost: Vec<String>,
    /// Tests by group.
    pub groups: BTreeMap<String, Group>,
    /// The test that runs, or was running when the guest ended.
    pub running: Option<String>,
    /// The output of the agent on a refused kernel.
    pub agent: String,
    /// What remains of the agent there.
    pub left: Vec<String>,
    /// Exit status of the tests, or of the agent on a refused kernel.
    pub status: Option<i32>,
    #[serde(skip)]
    has_skipped: bool,
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
    checks: Vec<Check>,
}

#[derive(Deserialize)]
struct Check {
    facility: String,
    ok: Option<bool>,
    optional: bool,
}

impl Session {
    /// A session on the kernel of this release.
    pub fn new(kernel: &str) -> Self {
        Self {
            kernel: kernel.to_owned(),
            ..Self::default()
        }
    }

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
                } else if line.contains(SKIPPED) {
                    self.has_skipped = true;
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
                self.status = word
                    .strip_prefix("ended ")
                    .and_then(|status| status.parse().ok());
                self.part = Part::Before;
            }
        }
    }

    fn read_doctor(&mut self) {
        let Ok(doctor) = serde_json::from_str::<Doctor>(&self.doctor) else {
            return;
        };
        self.doctor_read = true;
        for check in doctor.checks {
            if check.ok != Some(true) {
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
            self.has_skipped = false;
            return;
        }
        self.running = None;
        let (group, _) = name.split_once("::").unwrap_or(("other", ""));
        let group = self.groups.entry(group.to_owned()).or_default();
        if event.event == "ok" {
            group.passed += 1;
            group.skipped += usize::from(self.has_skipped);
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
            // A refusal is no failure if it is complete.
            if self.status == Some(0) {
                problems.push("the agent started on a kernel that doctor refuses".to_owned());
            }
            for facility in &self.missing {
                if !self.agent.contains(facility.as_str()) {
                    problems.push(format!(
                        "the agent does not name {facility}: {}",
                        self.agent.trim()
                    ));
                }
            }
            if !self.left.is_empty() {
                problems.push(format!("the agent did not remove {}", self.left.join(", ")));
            }
        } else if self.status != Some(0) && self.failed().next().is_none() {
            problems.push("the tests did not finish".to_owned());
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
