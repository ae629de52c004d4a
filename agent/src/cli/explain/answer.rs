//! The decision about a connection, and its words.

use std::net::{IpAddr, SocketAddr};

use serde::Serialize;
use sidetrack_common::{
    addr::{Addr, Family},
    decide::{self, Decision, Inbound, Outbound, Verdict},
    pod::IfaceRow,
    route_rules::RoutedSocket,
    rule::Rule,
    target::{is_shared, is_target},
};
use sidetrack_policy::rules::{self, ListTables};

use super::{
    super::target::{SocketRoutes, Target},
    Direction, Protocol,
    owner::Owner,
};

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

/// Decides about a connection to an address. For one over IPv6 to or from a pod whose addresses are unknown it may
/// depend on them.
pub(super) fn answer(target: &Target, direction: &Direction, to: SocketAddr) -> Explanation {
    if let Some(ipv6) = target.ipv6 {
        return decide(target, direction, to, ipv6);
    }
    let with = decide(target, direction, to, true);
    let without = decide(target, direction, to, false);
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

fn decide(target: &Target, direction: &Direction, to: SocketAddr, ipv6: bool) -> Explanation {
    let policy = target.policy.compile().row();
    let tables = |socket| ListTables {
        policy: &target.policy,
        routes: SocketRoutes { target, socket },
        before_sidecar: target.before_sidecar,
    };
    let bound = |ip: &Option<IpAddr>| ip.map_or(Addr::UNSPECIFIED, Addr::from);
    let destination = Addr::from(to.ip());
    let captured_family = destination.family() == Family::V4 || ipv6;
    let (decision, family) = match direction {
        Direction::Outbound {
            uid,
            gid,
            src,
            mark,
            protocol,
            ..
        } => {
            let conn = Outbound {
                owner: Owner::new(&target.policy, *uid, *gid).creator(),
                source: bound(src),
                destination,
                port: to.port(),
                mark: *mark,
                routing_header: false,
                captured_family,
            };
            let family = decide::effective_destination(&conn, 0).family();
            let is_target = target.policy.rules_ignore_capture_range()
                && is_shared(destination)
                && to.port() == policy.outbound_port;
            let tables = tables(RoutedSocket::of(&conn));
            let decision = match protocol {
                Protocol::Udp => decide::udp(&policy, &conn, &tables),
                Protocol::Tcp => match decide::outbound(&policy, &conn, &tables) {
                    // Over lo, where sk_lookup takes it for a redirected connection of which nothing is known.
                    decision if is_target && decision.verdict == Verdict::Untouched => {
                        Decision::refuse(Rule::UnknownTarget)
                    }
                    decision => decision,
                },
            };
            (decision, family)
        }
        Direction::Inbound { src, iface, .. } => {
            let iface = iface.as_deref();
            let syn = Inbound {
                source: bound(src),
                destination,
                port: to.port(),
                iface: iface.map_or(IfaceRow::PLAIN, |name| target.policy.iface(name)),
                captured_family,
            };
            let decision = match decide::inbound(&policy, &syn, &tables(RoutedSocket::PLAIN)) {
                // sk_lookup refuses it before any rule.
                decision if is_target(destination) && decision.rule != Rule::LocalSource => {
                    Decision::refuse(Rule::UnknownTarget)
                }
                decision => decision,
            };
            (decision, destination.family())
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
