//! The order of the writes: after each of them, a connection of the pod is decided by the policy before as a whole, by the
//! new one as a whole, or refused. The function that decides in the kernel says so.

use std::{collections::BTreeMap, net::IpAddr};

use sidetrack_common::{
    addr::Addr,
    decide::{self, Inbound, Outbound, Owner, Verdict},
    ids::PolicyId,
    pod::{IfaceRow, Route, RouteKind},
    policy,
};
use sidetrack_policy::{
    Policy,
    exclusions::Span,
    policy::InboundPorts,
    rules::{ListTables, Routes},
};
use sidetrack_reconcile::{
    Phase, Step,
    plan::{self, Change, OnFailure},
};

const IFACES: [&str; 2] = ["eth0", "net1"];
const CASES: u64 = 100;

type Steps<'a> = Vec<(Step<'a, ()>, OnFailure)>;

/// What decides the connections of one pod, and what the agent remembers of it.
#[derive(Clone, Default)]
struct Pod<'a> {
    policy: Option<(&'a Policy, policy::Policy)>,
    captures_v6: bool,
    is_attached: bool,
    /// By interface; the position in the policy's list, if the route's device is excluded.
    routes: BTreeMap<&'static str, Option<u32>>,
    ifaces: BTreeMap<&'static str, IfaceRow>,
    was_read: bool,
    /// The flag of the row that is written next.
    is_to_capture_v6: bool,
}

impl<'a> Pod<'a> {
    fn perform(&mut self, step: &Step<'a, ()>) {
        match step {
            Step::ReadNamespace => self.was_read = true,
            Step::CaptureV6(policy) if self.was_read => {
                let own = addresses().into_iter().map(|(own, _)| own);
                self.is_to_capture_v6 = self.captures_v6 || policy.captures_v6(own);
            }
            Step::WriteNamespace(policy, phase) if self.was_read => {
                self.write_namespace(policy, *phase);
            }
            Step::AttachPrograms => self.is_attached = true,
            Step::WritePod(policy, _) => {
                // Rows of the policy before may be there, and count only where it has captured.
                if self.policy.is_none() {
                    self.captures_v6 = self.is_to_capture_v6;
                }
                self.policy = Some((policy, policy.compile().row()));
            }
            Step::RemovePod => self.policy = None,
            Step::DetachPrograms => self.is_attached = false,
            Step::RemoveRoutes => self.routes.clear(),
            Step::RemoveIfaces => self.ifaces.clear(),
            // They decide whether a connection is answered, not where it goes.
            _ => {}
        }
    }

    fn write_namespace(&mut self, policy: &Policy, phase: Phase) {
        for iface in IFACES {
            let excluded = policy.excluded_interfaces.iter().position(|it| it == iface);
            let excluded = excluded.map(|position| position as u32);
            let was_excluded = matches!(self.routes.get(iface), Some(Some(_)));
            if phase == Phase::After || !(was_excluded && excluded.is_none()) {
                self.routes.insert(iface, excluded);
            }
            let row = policy.iface(iface);
            match phase {
                Phase::After if row == IfaceRow::PLAIN => drop(self.ifaces.remove(iface)),
                Phase::After => drop(self.ifaces.insert(iface, row)),
                Phase::Before if row == IfaceRow::PLAIN => {}
                Phase::Before => drop(self.ifaces.entry(iface).or_insert(row)),
            }
        }
        if phase == Phase::After {
            self.captures_v6 = self.is_to_capture_v6;
        }
    }

    fn verdict(&self, conn: &Connection) -> Verdict {
        let Some((policy, row)) = &self.policy else {
            return Verdict::Untouched;
        };
        let tables = self.tables(policy);
        let captured_family = self.captures_v6 || conn.remote.is_ipv4();
        let (own, remote) = (Addr::from(conn.own), Addr::from(conn.remote));
        if conn.is_inbound {
            if !self.is_attached {
                return Verdict::Untouched;
            }
            let iface = self.ifaces.get(conn.iface);
            let syn = Inbound {
                source: remote,
                destination: own,
                port: conn.port,
                iface: iface.copied().unwrap_or(IfaceRow::PLAIN),
                captured_family,
            };
            return decide::inbound(row, &syn, &tables).verdict;
        }
        let conn = Outbound {
            owner: Owner::UNKNOWN,
            source: Addr::UNSPECIFIED,
            destination: remote,
            port: conn.port,
            mark: 0,
            routing_header: false,
            captured_family,
        };
        decide::outbound(row, &conn, &tables).verdict
    }

    fn tables<'t>(&'t self, policy: &'t Policy) -> ListTables<'t, &'t Self> {
        ListTables {
            policy,
            routes: self,
            before_sidecar: false,
        }
    }
}

impl Routes for &Pod<'_> {
    fn route(&self, addr: Addr) -> Route {
        let own = addresses().map(|(own, _)| Addr::from(own));
        if own.iter().any(|own| own.is(addr)) {
            return Route {
                kind: RouteKind::Local as u32,
                ..Route::NONE
            };
        }
        let device = connections()
            .into_iter()
            .find(|it| Addr::from(it.remote).is(addr));
        let row = device.and_then(|it| self.routes.get(it.iface));
        row.map_or(Route::NONE, |excluded| Route {
            kind: RouteKind::Unicast as u32,
            flags: excluded.map_or(0, Route::excluding),
            ..Route::NONE
        })
    }
}

/// One that the app makes or accepts.
#[derive(Clone, Copy, Debug)]
struct Connection {
    own: IpAddr,
    remote: IpAddr,
    iface: &'static str,
    port: u16,
    is_inbound: bool,
}

/// The pod's addresses, each with one that is reached by the same interface.
fn addresses() -> [(IpAddr, IpAddr); 4] {
    [
        "10.1.0.2 10.9.1.1",
        "10.2.0.2 10.9.2.1",
        "fd01::2 fd09:1::1",
        "fd02::2 fd09:2::1",
    ]
    .map(|pair| {
        let (own, remote) = pair.split_once(' ').expect("a pair");
        (
            own.parse().expect("an address"),
            remote.parse().expect("an address"),
        )
    })
}

fn connections() -> Vec<Connection> {
    let mut all = Vec::new();
    for (number, (own, remote)) in addresses().into_iter().enumerate() {
        for port in [80, 443] {
            for is_inbound in [false, true] {
                let iface = IFACES[number % 2];
                all.push(Connection {
                    own,
                    remote,
                    iface,
                    port,
                    is_inbound,
                });
            }
        }
    }
    all
}

fn random_policy(random: &mut fastrand::Rng) -> Policy {
    let inbound = if random.bool() {
        InboundPorts::AllExcept(Vec::new())
    } else {
        InboundPorts::Only(vec![Span::from(443)])
    };
    let excluded = [80].into_iter().filter(|_| random.bool());
    Policy {
        inbound,
        excluded_outbound_ports: excluded.map(Span::from).collect(),
        dual_stack: random.bool(),
        excluded_interfaces: some_of(random),
        virtual_interfaces: some_of(random),
        ..Policy::default()
    }
}

fn some_of(random: &mut fastrand::Rng) -> Vec<String> {
    let some = IFACES.into_iter().filter(|_| random.bool());
    some.map(str::to_owned).collect()
}

/// Two policies of a pod that is enrolled by the first.
fn policies(seed: u64) -> [Policy; 2] {
    let mut random = fastrand::Rng::with_seed(seed);
    [(); 2].map(|()| random_policy(&mut random))
}

fn steps(change: Change, policy: &Policy) -> Steps<'_> {
    plan::write(change, policy, PolicyId::new(1), &())
}

fn removal() -> Steps<'static> {
    let steps = plan::remove().into_iter();
    steps.map(|step| (step, OnFailure::Stale)).collect()
}

fn enrolled(policy: &Policy) -> Pod<'_> {
    let mut pod = Pod::default();
    let steps = steps(Change::Enroll { passes: false }, policy);
    steps.iter().for_each(|(step, _)| pod.perform(step));
    pod
}

/// What an agent finds at its start.
fn of_earlier_agent(policy: &Policy) -> Pod<'_> {
    Pod {
        was_read: false,
        ..enrolled(policy)
    }
}

/// What is wrong with steps that are done up to every one of them, all of those before or without one that may fail.
fn violation(before: &Pod<'_>, steps: &Steps<'_>) -> Option<String> {
    let mut after = before.clone();
    steps.iter().for_each(|(step, _)| after.perform(step));
    let may_fail = steps.iter().enumerate();
    let may_fail = may_fail.filter(|(_, (_, on))| *on == OnFailure::Stale);
    let failing = may_fail.map(|(number, _)| Some(number));
    for failing in failing.chain([None]) {
        let mut now = before.clone();
        for (number, (step, _)) in steps.iter().enumerate() {
            if Some(number) != failing {
                now.perform(step);
            }
            for conn in connections() {
                let verdicts = [before, &after, &now].map(|pod| pod.verdict(&conn));
                let [old, new, now] = verdicts;
                let is_refused = matches!(now, Verdict::Fail { .. });
                if !is_refused && now != old && now != new {
                    return Some(format!(
                        "{now:?} after {step:?}, {conn:?}: {old:?}, {new:?}"
                    ));
                }
            }
        }
    }
    None
}

/// What is wrong in a change of any kind, of random policies, if the steps are in the order that `arranged` gives them.
fn violations(arranged: impl Fn(&mut Steps<'_>)) -> Vec<String> {
    let mut violations = Vec::new();
    for seed in 0..CASES {
        let [first, second] = &policies(seed);
        let changes = [
            (
                Pod::default(),
                steps(Change::Enroll { passes: false }, first),
            ),
            (enrolled(first), steps(Change::Policy, second)),
            (
                of_earlier_agent(first),
                steps(Change::Enroll { passes: false }, second),
            ),
            (enrolled(first), steps(Change::Refresh, first)),
            (enrolled(first), removal()),
        ];
        for (before, mut steps) in changes {
            arranged(&mut steps);
            violations.extend(violation(&before, &steps));
            if violations.len() > 2 {
                return violations;
            }
        }
    }
    violations
}

#[test]
fn a_change_that_fails_leaves_the_policy_before() {
    for seed in 0..CASES {
        let [first, second] = &policies(seed);
        let before = enrolled(first);
        for (number, (_, on_failure)) in steps(Change::Policy, second).iter().enumerate() {
            if *on_failure != OnFailure::Abort {
                continue;
            }
            let mut now = before.clone();
            let done = steps(Change::Policy, second);
            let done = done.iter().take(number);
            for (step, _) in done.chain(&steps(Change::Refresh, first)) {
                now.perform(step);
            }
            for conn in connections() {
                let verdicts = [&before, &now].map(|pod| pod.verdict(&conn));
                assert_eq!(verdicts[0], verdicts[1], "{number} steps: {conn:?}");
            }
        }
    }
}

#[test]
fn no_connection_sees_half_of_a_change() {
    assert_eq!(violations(|_| {}), Vec::<String>::new());
}

fn name(step: &Step<'_, ()>) -> &'static str {
    match step {
        Step::ReadNamespace => "read",
        Step::WriteNamespace(_, Phase::Before) => "before",
        Step::WriteNamespace(_, Phase::After) => "after",
        Step::WritePod(..) => "pod",
        Step::RemovePod => "remove pod",
        Step::RemoveIfaces => "remove interfaces",
        _ => "",
    }
}

/// Pairs whose order matters to where a connection goes. Those that only matter to whether it is answered, or to what
/// remains, are in the model test.
#[test]
fn the_order_of_these_pairs_matters() {
    for (first, second) in [
        ("read", "before"),
        ("before", "pod"),
        ("pod", "after"),
        ("remove pod", "remove interfaces"),
    ] {
        let swap = |steps: &mut Steps<'_>| {
            let position = |wanted| steps.iter().position(|(step, _)| name(step) == wanted);
            if let (Some(first), Some(second)) = (position(first), position(second)) {
                steps.swap(first, second);
            }
        };
        assert!(!violations(swap).is_empty(), "{first} and {second}");
    }
}
