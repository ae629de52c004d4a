//! Evaluates a case by the decision and by the rules, and compares the results.

use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use sidetrack_common::{
    addr::Addr,
    decide::{Decision, Verdict},
    rule::Rule,
};
use sidetrack_policy::{
    Dialect,
    rules::{self, Line},
};

use crate::{
    fixture::Case,
    netfilter::{Fate, Nat, Outcome},
};

/// A case, evaluated by the decision and by the rules.
pub struct Evaluation<'a> {
    case: &'a Case,
    /// The result of the decision.
    pub decision: Decision,
    /// The rules as text.
    text: String,
    /// The result of the rules.
    outcome: Result<Outcome, String>,
}

/// How the two results differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Disagreement {
    /// The rules could not be read or followed.
    Unreadable,
    /// What happens to the connection.
    Verdict,
    /// The line that decided.
    Line,
}

impl<'a> Evaluation<'a> {
    /// Evaluates a case both ways.
    pub fn of(case: &'a Case) -> Self {
        let text = rules::restore(&case.policy, case.family);
        Self {
            case,
            decision: case.decision(),
            outcome: walk(case, &text),
            text,
        }
    }

    /// The same decision, compared with other rules.
    pub fn against(&self, text: String) -> Self {
        Self {
            case: self.case,
            decision: self.decision,
            outcome: walk(self.case, &text),
            text,
        }
    }

    /// Compares the two results.
    pub fn compare(&self) -> Result<(), Disagreement> {
        let outcome = self
            .outcome
            .as_ref()
            .map_err(|_| Disagreement::Unreadable)?;
        let fate = match self.decision.verdict {
            Verdict::Untouched | Verdict::Mark => Fate::Accepted,
            // The address that SO_ORIGINAL_DST reports is part of the result.
            Verdict::Redirect { port, dialed, .. }
                if dialed.is(Addr::from(self.case.packet().destination)) =>
            {
                Fate::Redirected(port)
            }
            _ => return Err(Disagreement::Verdict),
        };
        if fate != outcome.fate {
            return Err(Disagreement::Verdict);
        }
        let named = self.named_line().map(|line| line.command());
        let named = named.filter(|_| !self.is_unnamed());
        if self.is_untouched_udp() || named.as_deref() == self.decisive_line() {
            Ok(())
        } else {
            Err(Disagreement::Line)
        }
    }

    /// Of which no line has to be named: one that names UDP has the decision of another line, for all protocols, and
    /// what no rule for DNS meets is untouched.
    fn is_untouched_udp(&self) -> bool {
        let fate = self.outcome.as_ref().map(|outcome| outcome.fate);
        self.case.packet().udp && fate == Ok(Fate::Accepted)
    }

    /// Whether no line is for the decision: ambient mode's lines say of marks and loopback only whom they are not about.
    fn is_unnamed(&self) -> bool {
        let is_about_lo = self.decision.rule == Rule::OverLo;
        let localhost: [IpAddr; 2] = [Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()];
        let is_loopback = localhost.contains(&self.case.packet().destination);
        self.case.policy.dialect == Dialect::Ambient
            && (self.decision.rule == Rule::ProxyMark || is_about_lo && is_loopback)
    }

    /// The line that decided: ACCEPT, a RETURN, or the one that sent the packet where it was redirected.
    pub fn decisive_line(&self) -> Option<&str> {
        let outcome = self.outcome.as_ref().ok()?;
        if self.is_untouched_udp() || self.is_unnamed() {
            return None;
        }
        let mut by = outcome.by.iter().rev();
        let last = match outcome.fate {
            Fate::Accepted => by.next(),
            Fate::Redirected(_) => {
                let last = by.next()?;
                // DNS has a REDIRECT for each server, and none that is shared by several rules.
                let is_shared = [
                    "-A ISTIO_REDIRECT",
                    "-A ISTIO_IN_REDIRECT",
                    "-A KUMA_MESH_OUTBOUND_REDIRECT",
                    "-A KUMA_MESH_INBOUND_REDIRECT",
                    "-A CONSUL_PROXY_REDIRECT",
                    "-A CONSUL_PROXY_IN_REDIRECT",
                ]
                .iter()
                .any(|chain| last.starts_with(chain));
                if is_shared { by.next() } else { Some(last) }
            }
        };
        last.map(String::as_str)
    }

    /// The REDIRECT that ended the walk and its port, if one did.
    pub fn redirect(&self) -> Option<(&str, u16)> {
        let outcome = self.outcome.as_ref().ok()?;
        match outcome.fate {
            Fate::Accepted => None,
            Fate::Redirected(port) => Some((outcome.by.last()?, port)),
        }
    }

    /// The rules with every copy of a line replaced.
    pub fn text_with(&self, line: &str, other: &str) -> String {
        let lines = self.text.split_inclusive('\n');
        lines
            .map(|kept| match kept.trim_end() == line {
                true => other,
                false => kept,
            })
            .collect()
    }

    fn named_line(&self) -> Option<Line> {
        rules::line_of(&self.case.policy, self.case.family, &self.decision)
    }
}

fn walk(case: &Case, text: &str) -> Result<Outcome, String> {
    Nat::parse(text)?.walk(&case.packet())
}

impl fmt::Display for Disagreement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Unreadable => "the rules cannot be read or followed",
            Self::Verdict => "the verdicts differ",
            Self::Line => "the lines that decided differ",
        })
    }
}

impl fmt::Display for Evaluation<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{:#?}", self.case)?;
        writeln!(f, "{:#?}", self.case.packet())?;
        writeln!(f, "decision: {:#?}", self.decision)?;
        writeln!(
            f,
            "its line: {:?}",
            self.named_line().map(|line| line.command())
        )?;
        writeln!(f, "the rules: {:#?}", self.outcome)?;
        f.write_str(&self.text)
    }
}
