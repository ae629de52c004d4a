//! What others remove or replace comes back, once, and whatever becomes of the rest.

use sidetrack_common::ids::NetnsCookie;
use sidetrack_reconcile::repairs::{LinkId, Part, Scope};

use crate::{
    events::{Event, LIST, ORDINARY},
    losses::LOSSES,
    node::Sabotage,
    pods::Variant,
    run::{Run, ready},
};

/// Of the losses: a pod's link is detached.
const DETACHED: u32 = 5;

/// Two enrolled pods.
fn enrolled() -> Run {
    let mut run = Run::new(true, Sabotage::None);
    for event in [
        Event::Create(0, Variant::Ports),
        Event::Create(1, Variant::Plain),
        Event::Start(0, ORDINARY),
        Event::Start(1, ORDINARY),
        LIST,
    ] {
        run.happen(event);
    }
    assert_eq!(run.core.enrollments().count(), 2);
    run
}

fn cookie(run: &Run, slot: usize) -> NetnsCookie {
    let mut all = run.core.enrollments();
    let it = all.find(|(name, _)| **name == run.pods[&slot].name);
    it.expect("it is enrolled").1.cookie
}

fn inbound(run: &Run, slot: usize) -> Part {
    Part::Link(LinkId::Inbound(cookie(run, slot)))
}

fn tries(run: &Run) -> u32 {
    run.world.borrow().repairs.values().sum()
}

fn is_attached(run: &Run, slot: usize) -> bool {
    run.world.borrow().is_attached(cookie(run, slot))
}

fn pass(run: &Run, millis: u64) {
    run.world.borrow_mut().now += std::time::Duration::from_millis(millis);
}

fn no_violations(run: &Run) {
    let violations = &run.world.borrow().violations;
    assert!(violations.is_empty(), "{violations:?}");
}

#[test]
fn what_is_whole_is_not_repaired() {
    let mut run = enrolled();
    for _ in 0..20 {
        run.tick(2000);
        assert!(!ready(run.core.repair(Scope::InboundLinks)));
    }
    assert_eq!(tries(&run), 0);
}

#[test]
fn each_loss_is_back_after_one_look_and_one_repair() {
    for loss in 0..LOSSES {
        let mut run = enrolled();
        run.happen(Event::Lose(0, loss));
        assert_eq!(tries(&run), 0);
        run.tick(2000);
        // No interface is excluded, so that there is no row to lose.
        let expected = u32::from(loss != 9);
        assert_eq!(
            tries(&run),
            expected,
            "loss {loss}: {:?}",
            run.world.borrow().repairs
        );
        let counted: u64 = run.core.repair_counts().values().sum();
        assert_eq!(counted, u64::from(expected), "loss {loss}");
        let own = matches!(loss, 5..=8 | 10).then(|| &run.pods[&0].name);
        for (pod, text) in run.core.drain_repairs() {
            assert_eq!(pod.as_ref(), own, "loss {loss}: {text}");
        }
        for _ in 0..5 {
            run.tick(2000);
        }
        assert_eq!(tries(&run), expected, "loss {loss} is repaired again");
        assert!(run.core.repair_problems().is_empty());
        no_violations(&run);
        run.finish();
        no_violations(&run);
    }
}

#[test]
fn only_a_cgroup_that_was_made_anew_is_another_one() {
    for loss in 0..LOSSES {
        let mut run = enrolled();
        run.happen(Event::Lose(0, loss));
        assert_eq!(ready(run.core.repair(Scope::All)), loss == 3, "loss {loss}");
    }
}

#[test]
fn inbound_links_are_back_without_a_look_at_the_rest() {
    let mut run = enrolled();
    run.happen(Event::Lose(0, DETACHED));
    run.happen(Event::Lose(1, DETACHED + 1));
    run.happen(Event::Lose(0, 0));
    assert!(!is_attached(&run, 0) && !is_attached(&run, 1));
    ready(run.core.repair(Scope::InboundLinks));
    assert!(is_attached(&run, 0) && is_attached(&run, 1));
    assert_eq!(tries(&run), 2);
    assert_eq!(run.core.repair_counts()["link"], 2);
    run.tick(2000);
    assert_eq!(run.core.repair_counts()["link"], 3);
}

#[test]
fn a_repair_that_fails_is_tried_less_and_less_often_and_holds_up_no_other() {
    let mut run = enrolled();
    let broken = inbound(&run, 0);
    run.world.borrow_mut().broken.insert(broken);
    run.happen(Event::Lose(0, DETACHED));
    run.happen(Event::Lose(1, DETACHED));
    run.happen(Event::Lose(0, 0));
    ready(run.core.repair(Scope::InboundLinks));
    assert!(!is_attached(&run, 0) && is_attached(&run, 1));
    let problems = run.core.repair_problems().to_vec();
    let [problem] = &problems[..] else {
        panic!("{problems:?}");
    };
    let expected = ["pod default/p0", "since 0 s", "it is broken"];
    assert!(
        expected.iter().all(|text| problem.contains(text)),
        "{problem}"
    );
    assert!(run.core.take_changed());
    // A look at everything as well: its hook comes back, and the other pod's link again.
    ready(run.core.repair(Scope::All));
    run.happen(Event::Lose(1, DETACHED));
    ready(run.core.repair(Scope::InboundLinks));
    assert!(is_attached(&run, 1));
    assert!(run.world.borrow().lost_of_node().is_empty());
    for _ in 0..300 {
        pass(&run, 200);
        ready(run.core.repair(Scope::InboundLinks));
    }
    let count = run.world.borrow().repairs[&broken];
    // 0.2 s, 0.4 s and so on, then 10 s.
    assert!((9..=12).contains(&count), "{count} tries in a minute");
    assert!(run.core.repair_problems()[0].contains("since 60 s"));
    run.world.borrow_mut().broken.clear();
    pass(&run, 10_000);
    ready(run.core.repair(Scope::InboundLinks));
    assert!(is_attached(&run, 0));
    assert!(run.core.repair_problems().is_empty());
    // The next loss is repaired at once again.
    run.happen(Event::Lose(0, DETACHED));
    ready(run.core.repair(Scope::InboundLinks));
    assert!(is_attached(&run, 0));
    no_violations(&run);
}

#[test]
fn what_comes_back_by_itself_is_no_problem_any_more() {
    let mut run = enrolled();
    let broken = inbound(&run, 0);
    run.world.borrow_mut().broken.insert(broken);
    run.happen(Event::Lose(0, DETACHED));
    ready(run.core.repair(Scope::InboundLinks));
    assert_eq!(run.core.repair_problems().len(), 1);
    let generation = run.world.borrow().generation;
    let lookup = cookie(&run, 0);
    run.world
        .borrow_mut()
        .tables
        .lookups
        .insert(lookup, generation);
    // A look at the links alone does not see their pins, which may be what is wrong.
    ready(run.core.repair(Scope::InboundLinks));
    assert_eq!(run.core.repair_problems().len(), 1);
    ready(run.core.repair(Scope::All));
    assert!(run.core.repair_problems().is_empty());
    // It does not wait for what has failed before.
    run.world.borrow_mut().broken.clear();
    run.happen(Event::Lose(0, DETACHED));
    ready(run.core.repair(Scope::InboundLinks));
    assert!(is_attached(&run, 0));
}

#[test]
fn a_pod_of_an_earlier_agent_is_attached_where_it_runs_and_forgotten_when_it_is_gone() {
    let mut run = enrolled();
    run.happen(Event::Lose(0, DETACHED));
    run.happen(Event::Restart);
    assert_eq!(run.core.pods_of_earlier_agents().len(), 2);
    let cookies: Vec<_> = run
        .core
        .pods_of_earlier_agents()
        .iter()
        .map(|it| it.0)
        .collect();
    let attached = |run: &Run, at: usize| run.world.borrow().is_attached(cookies[at]);
    assert!(!attached(&run, 0) && attached(&run, 1));
    run.world
        .borrow_mut()
        .broken
        .insert(Part::Earlier(cookies[0]));
    ready(run.core.repair(Scope::All));
    // A look at the links of this agent's pods says nothing about it.
    ready(run.core.repair(Scope::InboundLinks));
    let problems = run.core.repair_problems();
    assert!(problems[0].contains("pod default/p0"), "{problems:?}");
    run.world.borrow_mut().broken.clear();
    pass(&run, 2000);
    ready(run.core.repair(Scope::All));
    assert!(attached(&run, 0) && run.core.repair_problems().is_empty());
    assert_eq!(run.core.repair_counts()["link"], 1);
    run.happen(Event::Vanish(0));
    // Processes that cannot be seen may be there.
    run.happen(Event::Unseen(true));
    ready(run.core.repair(Scope::All));
    assert_eq!(run.core.pods_of_earlier_agents().len(), 2);
    run.happen(Event::Unseen(false));
    ready(run.core.repair(Scope::All));
    let earlier = run.core.pods_of_earlier_agents();
    assert_eq!(
        earlier.iter().map(|it| it.0).collect::<Vec<_>>(),
        [cookies[1]]
    );
    assert!(!run.world.borrow().tables.pods.contains_key(&cookies[0]));
    no_violations(&run);
}
