//! Answers to the CNI plugin in every state of a pod.

use std::sync::Arc;

use sidetrack_policy::{
    manifest::{Document, NamespaceFacts},
    mesh::Mesh,
    select::Enroll,
};
use sidetrack_reconcile::{
    Node as _, PodState,
    cni::{CniAnswer, Sandbox},
};

use crate::{
    events::{Event, LIST, ORDINARY},
    pods::{Pod, Variant},
    run::{Run, ready},
};

/// Kind of a namespace without the sidecar's user.
const WITHOUT_USER: u32 = 3;

fn pod(run: &Run) -> Pod {
    run.pods[&0].clone()
}

/// The sandbox of the pod in slot 0, and the answer to ADD.
fn add(run: &mut Run, kind: u32) -> (Sandbox, CniAnswer) {
    let (sandbox, _) = run.sandbox(&pod(run), kind);
    let answer = run.ask(&sandbox);
    (sandbox, answer)
}

fn reason(answer: &CniAnswer) -> &str {
    match answer {
        CniAnswer::Skipped(reason) | CniAnswer::Refused(reason) | CniAnswer::Later(reason) => {
            reason
        }
        CniAnswer::Enrolled | CniAnswer::Done => "",
    }
}

#[test]
fn a_listed_pod_is_enrolled_before_anything_runs() {
    let mut run = Run::after(true, &[Event::Create(0, Variant::Plain), LIST]);
    let (sandbox, answer) = add(&mut run, ORDINARY);
    assert_eq!(answer, CniAnswer::Enrolled);
    assert_eq!(run.ask(&sandbox), CniAnswer::Enrolled);
    assert_eq!(run.core.check(&sandbox), CniAnswer::Enrolled);
    let other = Sandbox {
        inode: sandbox.inode + 1,
        ..sandbox
    };
    assert!(reason(&run.core.check(&other)).contains("another network namespace"));
}

#[test]
fn a_pod_that_is_not_known_waits_for_the_api_server() {
    let mut run = Run::after(true, &[Event::Create(0, Variant::Plain)]);
    let (sandbox, answer) = add(&mut run, ORDINARY);
    assert!(
        reason(&answer).contains("does not know its pods yet"),
        "{answer:?}"
    );
    assert!(matches!(run.core.check(&sandbox), CniAnswer::Later(_)));
    run.happen(Event::Delete(0));
    run.happen(LIST);
    let answer = run.ask(&sandbox);
    assert!(matches!(answer, CniAnswer::Later(_)), "{answer:?}");
    assert!(
        reason(&answer).contains("from the API server"),
        "{answer:?}"
    );
    assert!(matches!(run.core.check(&sandbox), CniAnswer::Later(_)));
}

#[test]
fn a_directory_names_all_pods_if_it_could_be_read() {
    let mut run = Run::after(false, &[Event::Create(1, Variant::Plain), LIST]);
    run.happen(Event::Create(0, Variant::Plain));
    let (sandbox, answer) = add(&mut run, ORDINARY);
    assert_eq!(
        answer,
        CniAnswer::Skipped("no manifest names it".to_owned())
    );
    assert!(matches!(run.core.check(&sandbox), CniAnswer::Skipped(_)));
    run.happen(Event::CannotList);
    let answer = run.ask(&sandbox);
    assert!(matches!(answer, CniAnswer::Later(_)), "{answer:?}");
    assert!(
        reason(&answer).contains("not all could be read: injected"),
        "{answer:?}"
    );
}

#[test]
fn a_manifest_with_another_uid_is_another_pods() {
    let mut run = Run::after(false, &[Event::Create(0, Variant::Plain)]);
    run.pods.get_mut(&0).unwrap().has_uid = true;
    run.happen(LIST);
    let (mut sandbox, _) = run.sandbox(&pod(&run), ORDINARY);
    sandbox.uid = "other".to_owned();
    let answer = run.ask(&sandbox);
    assert!(matches!(answer, CniAnswer::Refused(_)), "{answer:?}");
    assert!(reason(&answer).contains("it has another UID"), "{answer:?}");
}

#[test]
fn a_manifest_that_names_another_namespace_is_refused() {
    let mut run = Run::after(false, &[Event::Create(0, Variant::Plain), LIST]);
    let (mut sandbox, answer) = add(&mut run, ORDINARY);
    assert_eq!(answer, CniAnswer::Enrolled);
    sandbox.inode += 1;
    let answer = run.ask(&sandbox);
    assert!(matches!(answer, CniAnswer::Refused(_)), "{answer:?}");
    assert!(
        reason(&answer).contains("names another network namespace"),
        "{answer:?}"
    );
}

#[test]
fn a_static_pod_is_skipped() {
    let mut run = Run::after(true, &[Event::Create(0, Variant::Plain), LIST]);
    let (mut sandbox, _) = run.sandbox(&pod(&run), ORDINARY);
    sandbox.uid = "0123456789abcdef0123456789ABCDEF".to_owned();
    assert!(reason(&run.ask(&sandbox)).contains("static pod"));
    assert!(matches!(run.core.check(&sandbox), CniAnswer::Skipped(_)));
    for uid in [
        "0123456789abcdef0123456789ABCDE",
        "0123456789abcdef0123456789ABCDEG",
    ] {
        sandbox.uid = uid.to_owned();
        assert!(matches!(run.ask(&sandbox), CniAnswer::Later(_)), "{uid}");
        assert!(
            matches!(run.core.check(&sandbox), CniAnswer::Later(_)),
            "{uid}"
        );
    }
}

#[test]
fn a_pod_that_opted_out_is_skipped_and_a_bad_one_refused() {
    let mut run = Run::after(true, &[Event::Create(0, Variant::OptedOut), LIST]);
    let (sandbox, answer) = add(&mut run, ORDINARY);
    assert!(
        matches!(&answer, CniAnswer::Skipped(it) if it.contains("disabled")),
        "{answer:?}"
    );
    assert_eq!(run.core.check(&sandbox), CniAnswer::Skipped(String::new()));
    run.happen(Event::Change(0, Variant::Bad));
    run.happen(LIST);
    let answer = run.ask(&sandbox);
    assert!(
        matches!(&answer, CniAnswer::Refused(it) if it.contains("OTHER")),
        "{answer:?}"
    );
    assert_eq!(run.core.check(&sandbox), answer);
}

#[test]
fn a_pod_that_cannot_be_enrolled_is_refused() {
    let mut run = Run::after(true, &[Event::Create(0, Variant::Plain), LIST]);
    let (sandbox, answer) = add(&mut run, WITHOUT_USER);
    assert!(
        matches!(&answer, CniAnswer::Refused(it) if it.contains("user 1337")),
        "{answer:?}"
    );
    assert_eq!(run.core.check(&sandbox), answer);
}

#[test]
fn a_deleted_pod_is_not_known() {
    let mut run = Run::after(true, &[Event::Create(0, Variant::Plain), LIST]);
    let (sandbox, answer) = add(&mut run, ORDINARY);
    assert_eq!(answer, CniAnswer::Enrolled);
    run.happen(Event::Delete(0));
    run.happen(LIST);
    // Its sandbox is there: a runtime may be about to start something.
    assert_eq!(run.core.check(&sandbox), CniAnswer::Enrolled);
    assert!(matches!(run.ask(&sandbox), CniAnswer::Later(_)));
}

#[test]
fn a_sandbox_that_is_removed_releases_its_pod_unless_something_runs() {
    for removal in [Event::Forget(0), Event::KeepSandboxes] {
        let mut run = Run::after(true, &[Event::Create(0, Variant::Plain), LIST]);
        let (sandbox, answer) = add(&mut run, ORDINARY);
        assert_eq!(answer, CniAnswer::Enrolled);
        let name = pod(&run).name;
        let inode = run.core.node.inode_at(&sandbox.netns).unwrap();
        run.happen(Event::Start(0, ORDINARY));
        remove(&mut run, removal, &sandbox);
        assert!(run.has_row(&name, inode), "{removal:?}");
        run.happen(Event::End(0));
        // The plugin repeats its request, and so does the runtime.
        run.world.borrow_mut().paths.insert(
            sandbox.netns.clone(),
            run.core.enrollments().next().unwrap().1.cookie,
        );
        assert_eq!(run.ask(&sandbox), CniAnswer::Enrolled);
        ready(run.core.forget_sandbox(&sandbox.container, Some(inode)));
        assert!(!run.has_row(&name, inode), "{removal:?}");
        let (_, record) = run.core.pods().next().unwrap();
        assert_eq!(record.state(), PodState::Waiting);
        assert!(run.core.take_changed());
    }
}

fn remove(run: &mut Run, removal: Event, sandbox: &Sandbox) {
    match removal {
        Event::Forget(_) => ready(run.core.forget_sandbox(&sandbox.container, None)),
        _ => ready(run.core.keep_sandboxes(&[])),
    }
}

#[test]
fn sandboxes_that_are_kept_keep_their_pods() {
    let mut run = Run::after(true, &[Event::Create(0, Variant::Plain), LIST]);
    let (sandbox, _) = add(&mut run, ORDINARY);
    ready(
        run.core
            .keep_sandboxes(std::slice::from_ref(&sandbox.container)),
    );
    ready(run.core.forget_sandbox("another", None));
    assert_eq!(run.core.check(&sandbox), CniAnswer::Enrolled);
    ready(run.core.keep_sandboxes(&[]));
    assert!(matches!(run.core.check(&sandbox), CniAnswer::Refused(_)));
}

#[test]
fn a_pod_that_the_plugin_names_first_is_starting_once() {
    let events = [
        Event::Create(0, Variant::BeforeSidecar),
        Event::Running(0),
        LIST,
    ];
    let mut run = Run::after(true, &events);
    let (sandbox, answer) = add(&mut run, ORDINARY);
    assert_eq!(answer, CniAnswer::Enrolled);
    let passes = |run: &Run| !run.world.borrow().tables.before_sidecar.is_empty();
    assert!(
        passes(&run),
        "its manifest says that it runs, but nothing does yet"
    );
    ready(run.core.forget_sandbox(&sandbox.container, None));
    assert!(!passes(&run));
    assert_eq!(run.ask(&sandbox), CniAnswer::Enrolled);
    assert!(!passes(&run), "it was enrolled before");
}

#[test]
fn a_pod_whose_sandbox_has_failed_is_starting_again() {
    let mut run = Run::after(true, &[Event::Create(0, Variant::BeforeSidecar), LIST]);
    let passes = |run: &Run| !run.world.borrow().tables.before_sidecar.is_empty();
    let remade = |run: &mut Run, before: &Sandbox| {
        ready(run.core.forget_sandbox(&before.container, None));
        assert!(!passes(run));
        run.world.borrow_mut().paths.remove(&before.netns);
        let (sandbox, answer) = add(run, ORDINARY);
        assert_eq!(answer, CniAnswer::Enrolled);
        assert_ne!(sandbox.inode, before.inode);
        sandbox
    };
    let (first, _) = add(&mut run, ORDINARY);
    assert!(passes(&run));
    let second = remade(&mut run, &first);
    assert!(passes(&run), "no container has started");
    // A container that ends its own sandbox gains nothing.
    run.happen(Event::Running(0));
    run.happen(LIST);
    remade(&mut run, &second);
    assert!(!passes(&run));
}

#[test]
fn a_pod_that_was_found_by_its_processes_is_not_starting() {
    let events = [
        Event::Create(0, Variant::BeforeSidecar),
        Event::Running(0),
        Event::Start(0, ORDINARY),
        LIST,
    ];
    let run = Run::after(true, &events);
    assert_eq!(run.core.enrollments().count(), 1);
    assert!(run.world.borrow().tables.before_sidecar.is_empty());
}

#[test]
fn a_pod_of_an_earlier_agent_is_not_starting() {
    let events = [Event::Create(0, Variant::BeforeSidecar), LIST];
    let mut run = Run::after(true, &events);
    let (sandbox, _) = add(&mut run, ORDINARY);
    run.happen(Event::Start(0, ORDINARY));
    run.happen(Event::Listen(0));
    run.happen(Event::End(0));
    assert!(run.world.borrow().tables.before_sidecar.is_empty());
    run.happen(Event::Restart);
    run.happen(LIST);
    assert_eq!(run.ask(&sandbox), CniAnswer::Enrolled);
    assert!(run.world.borrow().tables.before_sidecar.is_empty());
    assert_eq!(run.core.drain_events(), [], "nothing has changed for it");
}

#[test]
fn a_deleted_pod_stays_as_long_as_its_sandbox_is_there() {
    let mut run = Run::after(true, &[Event::Create(0, Variant::Plain), LIST]);
    let (sandbox, _) = add(&mut run, ORDINARY);
    run.happen(Event::Delete(0));
    run.happen(LIST);
    run.tick(500);
    assert_eq!(run.core.enrollments().count(), 1);
    run.world.borrow_mut().paths.remove(&sandbox.netns);
    run.tick(500);
    assert_eq!(run.core.enrollments().count(), 0);
    assert_eq!(run.core.pods().count(), 0);
}

#[test]
fn a_sandbox_that_was_made_anew_is_enrolled_and_the_old_one_stays_while_it_runs() {
    for runs in [true, false] {
        let mut run = Run::after(true, &[Event::Create(0, Variant::Plain), LIST]);
        add(&mut run, ORDINARY);
        if runs {
            run.happen(Event::Start(0, ORDINARY));
        }
        run.happen(Event::Replace(0, ORDINARY));
        let (sandbox, answer) = add(&mut run, ORDINARY);
        assert_eq!(answer, CniAnswer::Enrolled);
        assert_eq!(run.core.enrollments().count(), 1 + usize::from(runs));
        assert_eq!(run.core.check(&sandbox), CniAnswer::Enrolled);
    }
}

/// Lists the pod in slot 0 with changes to its document.
fn list_changed(run: &mut Run, change: impl FnOnce(&mut Document)) {
    let document = run.changed(change);
    run.list_one(document);
}

#[test]
fn a_pod_whose_namespace_is_not_known_for_sure_waits_if_a_label_could_enroll_it() {
    let injected = Mesh::new(Enroll::Injected);
    let ambient = Mesh {
        ambient: true,
        ..injected.clone()
    };
    for (mesh, variant, later) in [
        (Mesh::new(Enroll::Labeled), Variant::Plain, true),
        (injected, Variant::NoSidecar, false),
        (ambient, Variant::NoSidecar, true),
    ] {
        let mut run = Run::after(true, &[Event::Create(0, variant)]);
        run.core.set_mesh(mesh);
        list_changed(&mut run, |document| {
            Arc::make_mut(&mut document.pod).meta.labels.interception = None;
            document.namespace = NamespaceFacts::Old;
        });
        let (_, answer) = add(&mut run, ORDINARY);
        assert_eq!(matches!(answer, CniAnswer::Later(_)), later, "{answer:?}");
        assert_eq!(
            matches!(answer, CniAnswer::Skipped(_)),
            !later,
            "{answer:?}"
        );
    }
}

#[test]
fn a_pod_is_not_opted_out_by_the_end_of_its_namespace() {
    let events = [
        Event::Create(0, Variant::Plain),
        Event::Start(0, ORDINARY),
        LIST,
    ];
    let mut run = Run::after(true, &events);
    run.core.set_mesh(Mesh::new(Enroll::Labeled));
    for (namespace, enrolled) in [(NamespaceFacts::Missing, 1), (NamespaceFacts::Current, 0)] {
        list_changed(&mut run, |document| {
            Arc::make_mut(&mut document.pod).meta.labels.interception = None;
            document.namespace = namespace;
        });
        assert_eq!(run.core.enrollments().count(), enrolled, "{namespace:?}");
    }
}

#[test]
fn a_pod_that_cannot_be_enrolled_is_skipped_for_its_istio_init() {
    let mut run = Run::after(true, &[Event::Create(0, Variant::Bad)]);
    list_changed(&mut run, |document| {
        let init = Variant::Bad.with_istio_init().pod;
        let pod = Arc::make_mut(&mut document.pod);
        pod.spec.init_containers = init.spec.init_containers.clone();
    });
    let (sandbox, answer) = add(&mut run, ORDINARY);
    assert!(matches!(answer, CniAnswer::Skipped(_)), "{answer:?}");
    assert!(
        reason(&answer).ends_with("; its istio-init sets up redirection instead"),
        "{answer:?}"
    );
    assert_eq!(run.core.check(&sandbox), answer);
}

#[test]
fn a_sandbox_that_is_gone_when_it_is_opened_is_waited_for() {
    let mut run = Run::after(true, &[Event::Create(0, Variant::Plain), LIST]);
    let (sandbox, _) = run.sandbox(&pod(&run), ORDINARY);
    run.world.borrow_mut().paths.clear();
    let answer = run.ask(&sandbox);
    assert!(
        matches!(&answer, CniAnswer::Later(it) if it.contains("no process")),
        "{answer:?}"
    );
}
