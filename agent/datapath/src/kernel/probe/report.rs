//! The report of `sidetrack doctor` and its rows.

use std::fmt::Display;

use serde::Serialize;

/// What was found.
#[derive(Debug, Serialize)]
pub struct DoctorReport {
    /// Kernel release.
    pub kernel: String,
    /// Whether every required facility is there and ready: an agent would start.
    pub ok: bool,
    /// Whether the node can run sidetrack once it is prepared, with a mount or another path.
    pub able: bool,
    /// Each facility.
    pub checks: Vec<Check>,
}

/// One facility.
#[derive(Debug, Serialize)]
pub struct Check {
    /// The object whose programs need it: `core` is loaded at the start, `forward`, `accelerate` and `dns` when a pod
    /// needs them.
    pub object: &'static str,
    /// Its name.
    pub facility: String,
    /// First kernel to have it, or what else it comes with.
    pub since: String,
    /// Whether it is there; `None` if this process has no permission to find out.
    pub ok: Option<bool>,
    /// Whether sidetrack runs without it.
    pub optional: bool,
    /// What sidetrack loses without it.
    pub without: String,
    /// What was seen and what to do, if it is missing or not ready to use.
    pub problem: Option<String>,
}

/// Why a facility cannot be used now.
pub(super) enum Problem {
    /// The kernel does not have it.
    Missing(String),
    /// The kernel has it, and the node needs preparation, such as a mount.
    Unprepared(String),
}

impl<E: Display> From<E> for Problem {
    fn from(problem: E) -> Self {
        Self::Missing(format!("{problem:#}"))
    }
}

impl Check {
    /// A facility that sidetrack needs.
    pub(super) fn required<T>(
        facility: &str,
        since: &str,
        without: &str,
        result: Result<T, impl Into<Problem>>,
    ) -> Self {
        let (ok, problem) = match result.map_err(Into::into) {
            Ok(_) => (Some(true), None),
            Err(Problem::Unprepared(problem)) => (Some(true), Some(problem)),
            Err(Problem::Missing(problem)) => (Some(false), Some(problem)),
        };
        Self {
            object: "core",
            facility: facility.to_owned(),
            since: since.to_owned(),
            ok,
            optional: false,
            without: without.to_owned(),
            problem,
        }
    }

    /// A facility that sidetrack runs without.
    pub(super) fn optional(facility: &str, since: &str, without: &str, is_there: bool) -> Self {
        let result = if is_there {
            Ok(())
        } else {
            Err("sidetrack does without it".to_owned())
        };
        Self {
            optional: true,
            ..Self::required(facility, since, without, result)
        }
    }

    /// The same facility, for another object than the core.
    pub(super) fn of(self, object: &'static str) -> Self {
        Self { object, ..self }
    }

    /// Whether the facility is known to be missing and needed.
    pub(super) fn is_missing(&self) -> bool {
        self.ok == Some(false) && !self.optional
    }

    /// Whether sidetrack can use the facility as it is.
    pub(super) fn is_ready(&self) -> bool {
        self.optional || self.ok == Some(true) && self.problem.is_none()
    }

    /// Marks the facility as unknown.
    pub(super) fn forget(&mut self) {
        self.ok = None;
        self.problem = None;
    }
}
