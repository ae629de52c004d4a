//! What the reconciler shows of itself: problems, changes, policies, notes.

use sidetrack_policy::{
    manifest::Problem,
    mesh::{DefaultFlag, Mesh, defaults},
    select::Enroll,
};
use sidetrack_reconcile::{Listing, PodState};

use crate::{
    events::{Event, LIST, ORDINARY},
    node::Sabotage,
    pods::Variant,
    run::{Run, ready},
};

/// A run with one enrolled pod.
fn enrolled(api: bool) -> Run {
    let mut run = Run::new(api, Sabotage::None);
    for event in [
        Event::Create(0, Variant::Plain),
        Event::Start(0, ORDINARY),
        LIST,
    ] {
        run.happen(event);
    }
    assert_eq!(run.core.enrollments().count(), 1);
    run
}

#[test]
fn the_first_complete_listing_says_what_its_source_counts() {
    for api in [false, true] {
        let mut run = Run::new(api, Sabotage::None);
        assert_eq!(run.core.running_counts(), None);
        run.list(false);
        assert_eq!(run.core.running_counts(), None);
        run.list(true);
        assert_eq!(run.core.running_counts(), Some(api));
    }
}

#[test]
fn other_settings_of_the_mesh_change_policies_with_the_next_listing() {
    let mut run = enrolled(true);
    let flag: DefaultFlag = "excludeOutboundPorts=3306".parse().unwrap();
    run.core.set_mesh(Mesh {
        defaults: defaults(&[flag], None).unwrap(),
        ..Mesh::new(Enroll::Injected)
    });
    run.happen(LIST);
    let (_, enrollment) = run.core.enrollments().next().unwrap();
    assert_eq!(enrollment.policy.excluded_outbound_ports, [3306]);
}

#[test]
fn changes_are_shown_once() {
    let mut run = enrolled(true);
    assert!(run.core.take_changed());
    assert!(!run.core.take_changed());
    run.tick(500);
    assert!(!run.core.take_changed(), "nothing has changed");
    run.core.mark_changed();
    assert!(run.core.take_changed());
    run.core.cannot_list("no API server".to_owned());
    assert_eq!(run.core.problems, ["no API server"]);
    assert!(run.core.take_changed());
    run.happen(Event::Routes(0, 0));
    assert!(run.core.take_changed());
    run.happen(LIST);
    assert!(run.core.take_changed());
    assert!(run.core.problems.is_empty());
}

#[test]
fn a_pod_that_is_enrolled_later_is_a_change() {
    let mut run = Run::new(true, Sabotage::None);
    run.happen(Event::Create(0, Variant::Plain));
    run.happen(LIST);
    assert_eq!(run.core.awaited().count(), 1);
    run.core.take_changed();
    run.happen(Event::Start(0, ORDINARY));
    run.tick(500);
    assert!(run.core.take_changed());
    assert_eq!(run.core.awaited().count(), 0);
}

#[test]
fn a_pod_whose_first_process_is_noticed_is_enrolled_at_once() {
    let mut run = Run::new(true, Sabotage::None);
    run.happen(Event::Create(0, Variant::Plain));
    run.happen(LIST);
    run.core.take_changed();
    run.happen(Event::Awaited(0));
    assert!(!run.core.take_changed(), "no process runs");
    run.happen(Event::Start(0, ORDINARY));
    run.happen(Event::Listen(0));
    run.happen(Event::Awaited(0));
    assert!(run.core.take_changed());
    assert_eq!(run.core.enrollments().count(), 1);
    assert_eq!(run.world.borrow().tables.listeners.len(), 2);
}

#[test]
fn a_pod_is_searched_for_listeners_again_once_its_row_is_written() {
    let mut run = Run::new(true, Sabotage::None);
    run.happen(Event::Create(0, Variant::Plain));
    run.happen(LIST);
    run.happen(Event::Start(0, ORDINARY));
    let before = run.world.borrow().searches;
    run.tick(500);
    assert_eq!(run.world.borrow().searches, before + 2);
    run.tick(500);
    assert_eq!(run.world.borrow().searches, before + 2);
}

#[test]
fn two_documents_of_one_pod_and_unusable_ones_are_problems() {
    let mut run = Run::new(false, Sabotage::None);
    run.happen(Event::Create(0, Variant::Plain));
    let document = run.pods[&0].document(false);
    let mut second = run.pods[&0].document(false);
    second.origin = "second.json".to_owned();
    let listing = Listing {
        pods: vec![document, second],
        problems: vec![Problem {
            origin: "third.json".to_owned(),
            message: "it is a Service".to_owned(),
        }],
        complete: true,
        running_counts: false,
    };
    ready(run.core.apply(&listing));
    assert_eq!(
        run.core.problems,
        [
            "second.json: pod default/p0 is already in pod.json; remove one of the two",
            "third.json: it is a Service",
        ]
    );
    let (_, record) = run.core.pods().next().unwrap();
    assert_eq!(record.origin, "pod.json");
}

#[test]
fn pods_of_an_earlier_agent_are_named_and_known() {
    let mut run = enrolled(true);
    let known = run.core.known_cookies();
    assert_eq!(known.len(), 1);
    let inode = run.core.enrollments().next().unwrap().1.inode;
    run.happen(Event::Restart);
    assert_eq!(run.core.known_cookies(), known);
    let earlier = run.core.pods_of_earlier_agents();
    let expected = [(*known.first().unwrap(), inode, run.pods[&0].name.clone())];
    assert_eq!(earlier, expected);
    run.happen(LIST);
    assert!(run.core.pods_of_earlier_agents().is_empty());
    assert_eq!(run.core.known_cookies(), known);
}

#[test]
fn a_pod_of_an_earlier_agent_that_is_not_listed_stays_while_it_runs() {
    for (api, stays) in [(true, true), (false, false)] {
        let mut run = enrolled(api);
        run.happen(Event::Restart);
        run.happen(Event::Delete(0));
        run.list(false);
        assert_eq!(
            run.core.pods_of_earlier_agents().len(),
            1,
            "the listing is not complete"
        );
        run.list(true);
        assert_eq!(run.core.pods_of_earlier_agents().len(), usize::from(stays));
        run.happen(Event::EndDeleted);
        run.tick(500);
        assert!(run.core.pods_of_earlier_agents().is_empty());
        assert!(run.world.borrow().tables.pods.is_empty());
    }
}

#[test]
fn a_deleted_pod_stays_while_it_runs_and_says_so() {
    let mut run = enrolled(true);
    run.happen(Event::Delete(0));
    run.happen(LIST);
    let (_, record) = run.core.pods().next().unwrap();
    assert_eq!(record.state(), PodState::Enrolled);
    assert!(
        record
            .reason()
            .unwrap()
            .contains("it or its namespace is deleted, or it is completed, and it still runs")
    );
    run.happen(Event::EndDeleted);
    run.core.take_changed();
    run.tick(500);
    assert_eq!(run.core.pods().count(), 0);
    assert!(run.core.take_changed());
}

#[test]
fn a_path_that_leads_nowhere_is_a_remark_while_processes_run() {
    let mut run = enrolled(false);
    let paths = std::mem::take(&mut run.world.borrow_mut().paths);
    run.tick(500);
    let (_, record) = run.core.pods().next().unwrap();
    let reason = record.reason().unwrap_or_default().to_owned();
    assert!(
        reason.ends_with("; it stays enrolled in its namespace"),
        "{reason}"
    );
    run.world.borrow_mut().paths = paths;
    run.happen(LIST);
    let (_, record) = run.core.pods().next().unwrap();
    assert_eq!(
        (record.state(), record.reason()),
        (PodState::Enrolled, None)
    );
}

#[test]
fn policies_in_use_are_those_of_pods() {
    let mut run = enrolled(true);
    let ids = |run: &Run| run.core.policies().ids().into_iter().collect::<Vec<_>>();
    let policy = run.core.enrollments().next().unwrap().1.policy_id;
    assert_eq!(ids(&run), [policy]);
    assert_eq!(run.core.policies().in_use().count(), 1);
    assert_eq!(run.core.enrollments_mut().1.count(), 1);
    run.happen(Event::Delete(0));
    run.happen(Event::EndDeleted);
    run.happen(LIST);
    run.tick(2000);
    assert!(ids(&run).is_empty());
}

#[test]
fn notes_name_what_people_should_know() {
    let mut run = Run::new(true, Sabotage::None);
    run.happen(Event::Create(0, Variant::BeforeSidecar));
    run.happen(Event::Start(0, ORDINARY));
    run.happen(LIST);
    let (_, enrollment) = run.core.enrollments().next().unwrap();
    let notes = enrollment.notes();
    assert_eq!(notes, enrollment.policy.notes());
    assert!(!notes.is_empty());
    assert_eq!(notes.len(), 1, "its users have the node's numbers");
    let events = run.core.drain_events();
    assert!(events[0].note.contains(&notes[0]), "{events:?}");
}

#[test]
fn users_with_numbers_of_their_own_are_noted() {
    const OWN_USERS: u32 = 7;
    let mut run = Run::new(true, Sabotage::None);
    run.happen(Event::Create(0, Variant::Plain));
    run.happen(Event::Start(0, OWN_USERS));
    run.happen(LIST);
    let (_, enrollment) = run.core.enrollments().next().unwrap();
    let expected = "it numbers its users on its own: on the node, 0 is 100000";
    assert_eq!(enrollment.notes(), [expected]);
}

#[test]
fn a_rejected_pod_keeps_its_policy_in_its_next_namespace() {
    let mut run = enrolled(false);
    run.happen(Event::Change(0, Variant::Bad));
    run.happen(LIST);
    run.happen(Event::Vanish(0));
    run.tick(500);
    assert_eq!(run.core.enrollments().count(), 0);
    run.happen(Event::Start(0, ORDINARY));
    run.tick(500);
    let (_, enrollment) = run.core.enrollments().next().unwrap();
    assert_eq!(Some(&*enrollment.policy), Variant::Plain.policy());
}

#[test]
fn a_pod_in_a_new_namespace_gives_up_only_its_own_old_one() {
    for runs in [false, true] {
        let mut run = Run::new(true, Sabotage::None);
        for event in [
            Event::Create(0, Variant::Plain),
            Event::Create(1, Variant::Plain),
            LIST,
            Event::Attach(0, ORDINARY),
            Event::Attach(1, ORDINARY),
        ] {
            run.happen(event);
        }
        if runs {
            run.happen(Event::Start(1, ORDINARY));
        }
        run.happen(Event::Restart);
        assert_eq!(run.core.pods_of_earlier_agents().len(), 2);
        run.happen(Event::Replace(1, ORDINARY));
        run.happen(Event::List { complete: false });
        run.happen(Event::Attach(1, ORDINARY));
        let earlier = run.core.pods_of_earlier_agents();
        let names: Vec<_> = earlier
            .iter()
            .map(|(.., name)| name.name.as_str())
            .collect();
        assert_eq!(names, ["p0"]);
        // Processes in the old namespace keep it enrolled.
        assert_eq!(run.core.enrollments().count(), 1 + usize::from(runs));
        let violations = &run.world.borrow().violations;
        assert!(violations.is_empty(), "{violations:?}");
    }
}

#[test]
fn an_earlier_namespace_of_an_enrolled_pod_goes_when_its_processes_have_ended() {
    let mut run = Run::new(true, Sabotage::None);
    for event in [
        Event::Create(0, Variant::Plain),
        Event::Start(0, ORDINARY),
        LIST,
        Event::Restart,
        // The pod's processes are not found, so that it is enrolled where the plugin says.
        Event::Unseen(true),
        LIST,
        Event::Attach(0, ORDINARY),
        Event::Unseen(false),
    ] {
        run.happen(event);
    }
    ready(run.core.retry());
    assert_eq!(run.core.enrollments().count(), 1);
    assert_eq!(run.core.pods_of_earlier_agents().len(), 1);
    run.happen(Event::End(0));
    ready(run.core.retry());
    assert!(run.core.pods_of_earlier_agents().is_empty());
    assert_eq!(run.core.enrollments().count(), 1);
}
