//! The output of a guest, parsed, and the problems in it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

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
    /// What the agent left behind there.
    pub left: Vec<String>,
    /// Exit status of the tests, or of the agent on a refused kernel.
    pub status: Option<i32>,
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
    Left,
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
                }
            }
            Part::Agent => {
                self.agent += line;
                self.agent.push('\n');
            }
            Part::Left => self.left.push(line.to_owned()),
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
            "left" => self.part = Part::Left,
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
            return;
        }
        self.running = None;
        let (group, _) = name.split_once("::").unwrap_or(("other", ""));
        let group = self.groups.entry(group.to_owned()).or_default();
        if event.event == "ok" {
            group.passed += 1;
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
                problems.push(format!("the agent left behind {}", self.left.join(", ")));
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
mod tests {
    use super::Session;

    fn parse(lines: &[&str]) -> Session {
        let mut session = Session::new("6.1");
        for line in lines {
            session.read_line(line);
        }
        session
    }

    const FINE: &str = r#"{"checks":[{"facility":"sockops","ok":true,"optional":false}]}"#;
    const OLD: &str = r#"{"checks":[{"facility":"sockops","ok":false,"optional":false}]}"#;

    #[test]
    fn all_passed() {
        let session = parse(&[
            "@doctor",
            FINE,
            "@tests",
            r#"{ "type": "suite", "event": "started", "test_count": 1 }"#,
            r#"{ "type": "test", "event": "started", "name": "inbound::a" }"#,
            "output of a test",
            r#"{ "type": "test", "name": "inbound::a", "event": "ok" }"#,
            "@ended 0",
        ]);
        assert_eq!(session.problems(), Vec::<String>::new());
        assert_eq!(session.groups["inbound"].passed, 1);
    }

    #[test]
    fn a_failure_is_reported_with_its_output() {
        let session = parse(&[
            "@doctor",
            FINE,
            "@tests",
            r#"{ "type": "test", "name": "inbound::a", "event": "failed", "stdout": "Error: \"no\"" }"#,
            "@ended 1",
        ]);
        assert_eq!(session.problems(), ["inbound::a: Error: \"no\""]);
    }

    #[test]
    fn a_guest_that_ends_early_is_a_problem() {
        let session = parse(&[
            "@doctor",
            FINE,
            "@tests",
            r#"{ "type": "test", "event": "started", "name": "inbound::a" }"#,
        ]);
        let problems = session.problems().join("\n");
        assert!(problems.contains("during inbound::a"), "{problems}");
        assert!(!parse(&[]).problems().is_empty());
    }

    #[test]
    fn a_refusal_must_be_complete() {
        let refused = parse(&[
            "@doctor",
            OLD,
            "@agent",
            "lacks sockops",
            "@left",
            "@ended 1",
        ]);
        assert_eq!(refused.problems(), Vec::<String>::new());
        for wrong in [
            [
                "@doctor",
                OLD,
                "@agent",
                "lacks sockops",
                "@left",
                "@ended 0",
            ],
            ["@doctor", OLD, "@agent", "no idea", "@left", "@ended 1"],
            ["@doctor", OLD, "@agent", "lacks sockops", "@left", "a link"],
        ] {
            assert!(!parse(&wrong).problems().is_empty(), "{wrong:?}");
        }
    }
}
