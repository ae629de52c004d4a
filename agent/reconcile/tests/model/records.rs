//! What is kept of a pod from its documents: facts that others ask for, policies, servers of its resolv.conf, since when
//! it waits.

use std::{net::IpAddr, path::Path, sync::Arc, time::Duration};

use sidetrack_policy::{
    Policy,
    manifest::{Document, NamespaceFacts, NetnsRef, parse_pods},
    mesh::Mesh,
    select::Enroll,
};
use sidetrack_reconcile::{Node as _, PodState};

use crate::{
    events::{Event, LIST, ORDINARY},
    pods::Variant,
    run::{Run, own_path, ready},
};

fn servers(texts: &[&str]) -> Vec<IpAddr> {
    let parsed = texts.iter().map(|text| text.parse().expect("an address"));
    parsed.collect()
}

/// The document of the pod in slot 0, with DNS capture by its resolv.conf.
fn with_dns(run: &Run) -> Document {
    let text = r#"{"kind": "Pod", "metadata": {"name": "p"}, "spec": {
        "initContainers": [{"name": "istio-init", "args": ["istio-iptables", "--redirect-dns"]}],
        "containers": [{"name": "istio-proxy"}]}}"#;
    let (parsed, _) = parse_pods(Path::new("pod.json"), text).expect("a manifest");
    run.changed(|document| {
        Arc::make_mut(&mut document.pod).spec = parsed[0].pod.spec.clone();
    })
}

fn policy(run: &Run) -> Arc<Policy> {
    let (_, enrollment) = run.core.enrollments().next().expect("an enrollment");
    Arc::clone(&enrollment.policy)
}

/// The servers whose queries are captured.
fn captured(run: &Run) -> Vec<IpAddr> {
    let ranges = policy(run).dns_ranges().into_iter();
    ranges.map(|range| range.addr()).collect()
}

#[test]
fn facts_of_the_newest_document_are_known() {
    let mut run = Run::after(true, &[Event::Create(0, Variant::Ports), LIST]);
    let name = "traffic.sidecar.istio.io/excludeOutboundPorts";
    let of_pod = |run: &Run| {
        let (_, record) = run.core.pods().next().expect("the pod");
        let known = record.annotation(name).map(|it| it.map(str::to_owned));
        (known, record.service_account().map(str::to_owned))
    };
    let port = Some(Some("3306".to_owned()));
    assert_eq!(of_pod(&run), (port.clone(), Some("default".to_owned())));
    let named = run.changed(|document| {
        Arc::make_mut(&mut document.pod).spec.service_account_name = Some("web".to_owned());
    });
    run.list_one(named);
    assert_eq!(of_pod(&run), (port, Some("web".to_owned())));
    run.happen(Event::Create(0, Variant::Plain));
    run.happen(LIST);
    assert_eq!(of_pod(&run), (Some(None), Some("default".to_owned())));
}

#[test]
fn pods_with_equal_policies_use_one_copy() {
    let run = Run::after(
        true,
        &[
            Event::Create(0, Variant::Plain),
            Event::Create(1, Variant::Plain),
            Event::Start(0, ORDINARY),
            Event::Start(1, ORDINARY),
            LIST,
        ],
    );
    let policies: Vec<_> = run.core.enrollments().map(|(_, it)| &it.policy).collect();
    assert_eq!(policies.len(), 2);
    assert!(Arc::ptr_eq(policies[0], policies[1]));
}

#[test]
fn a_pod_waits_from_when_it_was_first_wanted() {
    let mut run = Run::after(true, &[Event::Create(0, Variant::Plain), LIST]);
    run.tick(700);
    // It is listed again, and has waited all along.
    run.happen(LIST);
    run.happen(Event::Start(0, ORDINARY));
    run.tick(300);
    assert_eq!(run.core.enrollments().count(), 1);
    let waits = run.core.drain_enrollment_waits();
    let second = Duration::from_secs(1)..Duration::from_millis(1100);
    assert!(
        matches!(waits[..], [wait] if second.contains(&wait)),
        "{waits:?}"
    );
    // Another policy is no enrollment.
    let other = run.changed(|document| {
        let annotations = &mut Arc::make_mut(&mut document.pod).meta.annotations;
        *annotations = Variant::Ports
            .with_istio_init()
            .pod
            .meta
            .annotations
            .clone();
    });
    run.list_one(other);
    assert_eq!(policy(&run).excluded_outbound_ports, [3306]);
    assert_eq!(run.core.drain_enrollment_waits(), []);
}

#[test]
fn a_pod_that_is_listed_again_stays_as_it_is() {
    let mut run = Run::after(
        true,
        &[
            Event::Create(0, Variant::Plain),
            Event::Start(0, ORDINARY),
            LIST,
        ],
    );
    run.tick(500);
    run.core.drain_events();
    let searches = run.world.borrow().searches;
    run.happen(LIST);
    assert_eq!(run.world.borrow().searches, searches);
    assert!(run.core.drain_events().is_empty());
}

#[test]
fn pods_that_swapped_their_namespaces_while_no_agent_ran_are_enrolled() {
    let mut run = Run::after(
        false,
        &[
            Event::Create(0, Variant::Plain),
            Event::Create(1, Variant::Ports),
            Event::Start(0, ORDINARY),
            Event::Start(1, ORDINARY),
            LIST,
        ],
    );
    let [first, second] = [0, 1].map(|slot| own_path(&run.pods[&slot], false));
    {
        let paths = &mut run.world.borrow_mut().paths;
        let [at_first, at_second] = [&first, &second].map(|path| paths[path]);
        paths.insert(first, at_second);
        paths.insert(second, at_first);
    }
    run.happen(Event::Restart);
    run.happen(LIST);
    run.tick(500);
    for slot in [0, 1] {
        let name = &run.pods[&slot].name;
        let (_, record) = run.core.pods().find(|(it, _)| *it == name).expect("listed");
        assert_eq!(record.state(), PodState::Enrolled, "{:?}", record.reason());
        let enrollment = record.enrollment().expect("enrolled");
        let own = run.core.node.inode_at(&own_path(&run.pods[&slot], false));
        assert_eq!(Some(enrollment.inode), own);
        let tables = &run.world.borrow().tables;
        assert_eq!(tables.pods[&enrollment.cookie].pod, *name);
        assert_eq!(tables.pods[&enrollment.cookie].policy, enrollment.policy_id);
    }
}

#[test]
fn a_pod_that_was_never_enrolled_is_skipped_with_its_namespace() {
    let mut run = Run::after(true, &[Event::Create(0, Variant::Plain)]);
    run.core.set_mesh(Mesh::new(Enroll::Labeled));
    let gone = run.changed(|document| {
        Arc::make_mut(&mut document.pod).meta.labels.interception = None;
        document.namespace = NamespaceFacts::Missing;
    });
    run.list_one(gone);
    let (_, record) = run.core.pods().next().expect("the pod");
    assert_eq!(record.state(), PodState::Skipped);
}

#[test]
fn servers_of_resolv_conf_are_part_of_the_policy_and_followed() {
    let mut run = Run::after(
        true,
        &[Event::Create(0, Variant::Plain), Event::Start(0, ORDINARY)],
    );
    let first = servers(&["10.96.0.10"]);
    run.world.borrow_mut().dns_servers = Some(first.clone());
    let document = with_dns(&run);
    run.list_one(document.clone());
    assert_eq!(captured(&run), first);
    // Listed again, they are not forgotten.
    run.list_one(document);
    assert_eq!(captured(&run), first);
    let (_, enrollment) = run.core.enrollments().next().expect("the pod");
    let cookie = enrollment.cookie;
    let second = servers(&["10.96.0.10", "fd00::53"]);
    run.core.take_changed();
    ready(run.core.set_dns_servers(cookie, second.clone()));
    assert!(run.core.take_changed());
    assert_eq!(captured(&run), second);
    ready(run.core.set_dns_servers(cookie, second));
    assert!(!run.core.take_changed(), "they are the same");

    // Another pod has its name now, and its processes still run.
    let mut other = with_dns(&run);
    Arc::make_mut(&mut other.pod).meta.uid = Some("other".to_owned());
    other.netns = Ok(NetnsRef::PodUid("other".to_owned()));
    run.list_one(other);
    let departed = run.core.enrollments().next();
    assert!(departed.is_some_and(|(_, it)| it.cookie == cookie));
    run.core.take_changed();
    ready(run.core.set_dns_servers(cookie, first));
    assert!(!run.core.take_changed(), "they are another pod's");
}
