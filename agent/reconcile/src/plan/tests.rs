//! The plan for every combination of facts, and the order of steps.

use sidetrack_common::ids::{NetnsInode, PolicyId};
use sidetrack_policy::Policy;

use super::{
    Action, Change, EnrolledFacts, Facts, Location, OnFailure, Phase, Step, plan, remove, write,
};

const HERE: NetnsInode = NetnsInode::new(1);
const ELSEWHERE: NetnsInode = NetnsInode::new(2);

fn locations() -> [Location; 4] {
    [
        Location::At(HERE),
        Location::At(ELSEWHERE),
        Location::NoProcess,
        Location::Unusable("no path".to_owned()),
    ]
}

fn kind<P>(step: &Step<'_, P>) -> &'static str {
    match step {
        Step::ReadNamespace => "read",
        Step::WriteNamespace(_, Phase::Before) => "before",
        Step::WriteNamespace(_, Phase::After) => "after",
        Step::CaptureV6(_) => "v6",
        Step::SetReturnRoute(_, Phase::Before) => "return",
        Step::SetReturnRoute(_, Phase::After) => "returned",
        Step::AttachPrograms => "lookup",
        Step::AdoptListeners(..) => "adopt",
        Step::AllowBeforeSidecar(_) => "allow",
        Step::WritePod(..) => "pod",
        Step::EndBeforeSidecar(_) => "end",
        Step::RemovePod => "-pod",
        Step::DetachPrograms => "-lookup",
        Step::RemoveBeforeSidecar => "-allow",
        Step::RemoveHandshakeCount => "-handshakes",
        Step::RemoveRoutes => "-routes",
        Step::RemoveIfaces => "-ifaces",
        Step::RemoveListeners => "-listeners",
        Step::RemoveCounters => "-counters",
        Step::RestoreNamespace => "-namespace",
    }
}

/// The expected plan, written out as a decision table.
fn expected(enrolled: &EnrolledFacts, location: &Location) -> Vec<Action> {
    let update = || {
        let mut actions = Vec::new();
        if !enrolled.same_policy {
            actions.push(Action::ChangePolicy);
        }
        if enrolled.stale {
            actions.push(Action::Refresh);
        }
        actions
    };
    let unchanged = enrolled.same_reference && enrolled.path_leads_there;
    match (unchanged, location) {
        (true, _) => update(),
        (false, Location::At(HERE)) => [vec![Action::FollowPath], update()].concat(),
        (false, Location::NoProcess) if enrolled.same_reference => update(),
        (false, Location::Unusable(_)) if enrolled.has_processes => {
            let remark = "no path; it stays enrolled in its namespace".to_owned();
            [vec![Action::Stay(remark)], update()].concat()
        }
        (false, _) => vec![Action::Depart, Action::Enroll],
    }
}

#[test]
fn a_pod_that_is_not_enrolled_is_enrolled() {
    for location in locations() {
        let facts = Facts {
            enrolled: None,
            location,
        };
        assert_eq!(plan(&facts), [Action::Enroll]);
    }
}

#[test]
fn every_combination_of_facts_has_its_plan() {
    for bits in 0..32_u8 {
        let enrolled = EnrolledFacts {
            inode: HERE,
            same_reference: bits & 1 != 0,
            path_leads_there: bits & 2 != 0,
            has_processes: bits & 4 != 0,
            same_policy: bits & 8 != 0,
            stale: bits & 16 != 0,
        };
        for location in locations() {
            let facts = Facts {
                enrolled: Some(enrolled.clone()),
                location: location.clone(),
            };
            assert_eq!(plan(&facts), expected(&enrolled, &location), "{facts:?}");
        }
    }
}

#[test]
fn a_settled_pod_needs_nothing() {
    let facts = Facts {
        enrolled: Some(EnrolledFacts {
            inode: HERE,
            same_reference: true,
            path_leads_there: true,
            has_processes: false,
            same_policy: true,
            stale: false,
        }),
        location: Location::NoProcess,
    };
    assert_eq!(plan(&facts), []);
}

fn of_change(change: Change) -> Vec<(&'static str, OnFailure)> {
    let policy = Policy::default();
    let steps = write(change, &policy, PolicyId::new(1), &());
    steps.iter().map(|(step, on)| (kind(step), *on)).collect()
}

#[test]
fn the_row_of_an_enrolled_pod_comes_after_all_that_decides() {
    use OnFailure::{Abort, Stale};
    let without = vec![
        ("read", Abort),
        ("v6", Abort),
        ("return", Abort),
        ("before", Abort),
        ("lookup", Abort),
        ("adopt", Abort),
        ("pod", Abort),
        ("after", Stale),
        ("returned", Stale),
    ];
    assert_eq!(of_change(Change::Enroll { passes: false }), without);
    let mut with = without;
    with.insert(6, ("allow", Abort));
    with.insert(8, ("end", Stale));
    assert_eq!(of_change(Change::Enroll { passes: true }), with);
}

#[test]
fn another_policy_is_active_before_rows_of_the_old_one_go() {
    use OnFailure::{Abort, Stale, Stop};
    let steps = [
        ("read", Abort),
        ("v6", Stale),
        ("return", Abort),
        ("before", Abort),
        ("adopt", Abort),
        ("pod", Abort),
        ("end", Stale),
        ("after", Stale),
        ("returned", Stale),
    ];
    assert_eq!(of_change(Change::Policy), steps);
    let steps = [
        ("read", Stop),
        ("v6", Stale),
        ("return", Stale),
        ("after", Stale),
        ("returned", Stale),
    ];
    assert_eq!(of_change(Change::Refresh), steps);
}

#[test]
fn the_row_of_a_leaving_pod_goes_first() {
    let steps: Vec<_> = remove::<()>().iter().map(kind).collect();
    assert_eq!(
        steps,
        [
            "-pod",
            "-lookup",
            "-allow",
            "-handshakes",
            "-routes",
            "-ifaces",
            "-listeners",
            "-counters",
            "-namespace",
        ]
    );
}
