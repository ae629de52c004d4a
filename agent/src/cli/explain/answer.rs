//! The decision about a connection, and its words.

use std::net::{IpAddr, SocketAddr};

use serde::Serialize;
use sidetrack_common::{
    addr::{Addr, Family},
    decide::{self, Decision, Inbound, Outbound, Verdict},
    pod::IfaceRow,
};
use sidetrack_policy::rules::{self, ListTables};

use super::{super::target::Target, owner::Owner};

/// The connection to decide about.
pub(super) enum Connection<'a> {
    /// A connect in the pod.
    Outbound {
        /// Who makes it.
        owner: Owner,
        /// What the socket is bound to.
        source: Option<IpAddr>,
        /// The socket's SO_MARK.
        mark: u32,
        /// Whether it is UDP.
        is_udp: bool,
        /// Where it goes.
        destination: SocketAddr,
    },
    /// A connection to the pod.
    Inbound {
        /// Where it comes from.
        source: Option<IpAddr>,
        /// Where it goes.
        destination: SocketAddr,
        /// On which interface it arrives.
        iface: Option<&'a str>,
    },
}

/// What happens to the connection, in one case.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(super) struct Explanation {
    /// `redirect`, `untouched`, `refuse`, or `depends`.
    verdict: &'static str,
    /// Capture port of a redirect.
    port: Option<u16>,
    /// errno of a refusal.
    errno: Option<i32>,
    /// The rule in iptables' words, or what decided instead of a rule.
    rule: String,
    /// The rule's name.
    name: &'static str,
    /// The sentence about the rule.
    #[serde(skip)]
    because: &'static str,
    /// If it depends: both answers.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    cases: Vec<Case>,
}

/// An answer under a condition.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct Case {
    /// The condition.
    when: &'static str,
    #[serde(flatten)]
    answer: Explanation,
}

const UNKNOWN: &str = "the manifest does not have the pod's addresses; state them with --pod-ip IP";

/// Decides. For a connection over IPv6 to or from a pod whose addresses are unknown it may depend on them.
pub(super) fn answer(target: &Target, connection: &Connection<'_>) -> Explanation {
    if let Some(ipv6) = target.ipv6 {
        return decide(target, connection, ipv6);
    }
    let with = decide(target, connection, true);
    let without = decide(target, connection, false);
    if with.same_verdict(&without) {
        return with;
    }
    let first = if target.policy.dual_stack {
        ("if the pod has an IPv6 address", "if it has none")
    } else {
        (
            "if the pod's first address is an IPv6 one",
            "if it is an IPv4 one",
        )
    };
    Explanation {
        verdict: "depends",
        port: None,
        errno: None,
        rule: UNKNOWN.to_owned(),
        name: "addresses-unknown",
        because: UNKNOWN,
        cases: vec![
            Case {
                when: first.0,
                answer: with,
            },
            Case {
                when: first.1,
                answer: without,
            },
        ],
    }
}

impl Explanation {
    fn same_verdict(&self, other: &Self) -> bool {
        (self.verdict, self.port, self.errno) == (other.verdict, other.port, other.errno)
    }

    /// Capture port of a redirect.
    pub(super) fn port(&self) -> Option<u16> {
        self.port
    }

    /// The rule's name.
    pub(super) fn name(&self) -> &'static str {
        self.name
    }

    /// The answer as lines of a label and a text.
    pub(super) fn lines(&self) -> Vec<(&'static str, String)> {
        let mut lines = vec![
            ("verdict", self.words()),
            ("because", self.because.to_owned()),
        ];
        if self.rule != self.because {
            lines.push(("rule", self.rule.clone()));
        }
        for case in &self.cases {
            let rule = &case.answer.rule;
            lines.push((
                "",
                format!("{}, {} ({rule})", case.answer.words(), case.when),
            ));
        }
        lines
    }

    fn words(&self) -> String {
        match (self.port, self.errno) {
            (Some(port), _) => format!("redirect to {port}"),
            (_, Some(errno)) => format!("refuse: {}", sidetrack_live::errno_text(errno)),
            _ if !self.cases.is_empty() => "depends on the pod's addresses".to_owned(),
            _ => self.verdict.to_owned(),
        }
    }
}

fn decide(target: &Target, connection: &Connection<'_>, ipv6: bool) -> Explanation {
    let policy = target.policy.compile().row();
    let tables = ListTables {
        policy: &target.policy,
        routes: target,
        before_sidecar: target.before_sidecar,
    };
    let bound = |ip: &Option<IpAddr>| ip.map_or(Addr::UNSPECIFIED, Addr::from);
    let captured = |family: Family| family == Family::V4 || ipv6;
    let (decision, family) = match connection {
        Connection::Outbound {
            owner,
            source,
            mark,
            is_udp,
            destination: to,
        } => {
            let destination = Addr::from(to.ip());
            let conn = Outbound {
                owner: owner.creator(),
                source: bound(source),
                destination,
                port: to.port(),
                mark: *mark,
                routing_header: false,
                captured_family: captured(destination.family()),
            };
            let family = decide::effective_destination(&conn).family();
            let decision = if *is_udp {
                decide::udp(&policy, &conn, &tables)
            } else {
                decide::outbound(&policy, &conn, &tables)
            };
            (decision, family)
        }
        Connection::Inbound {
            source,
            destination: to,
            iface,
        } => {
            let destination = Addr::from(to.ip());
            let syn = Inbound {
                source: bound(source),
                destination,
                port: to.port(),
                iface: iface.map_or(IfaceRow::PLAIN, |name| target.policy.iface(name)),
                captured_family: captured(destination.family()),
            };
            (
                decide::inbound(&policy, &syn, &tables),
                destination.family(),
            )
        }
    };
    in_words(target, &decision, family)
}

fn in_words(target: &Target, decision: &Decision, family: Family) -> Explanation {
    let (verdict, port, errno) = match decision.verdict {
        Verdict::Untouched | Verdict::BindToLoopback | Verdict::Mark => ("untouched", None, None),
        Verdict::Redirect { port, .. } | Verdict::Assign { port, .. } => {
            ("redirect", Some(port), None)
        }
        Verdict::Fail { errno } => ("refuse", None, Some(errno)),
    };
    let because = decision.rule.describe();
    let line = rules::line_of(&target.policy, family, decision);
    Explanation {
        verdict,
        port,
        errno,
        rule: line.map_or_else(|| because.to_owned(), |line| line.command()),
        name: decision.rule.name(),
        because,
        cases: Vec::new(),
    }
}
