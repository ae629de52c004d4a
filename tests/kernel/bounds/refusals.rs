//! What is remembered of refusals has room for every pod, whatever one of them does.

use std::{
    collections::BTreeSet,
    sync::atomic::{AtomicBool, Ordering},
    thread,
};

use anyhow::{Result, anyhow, ensure};
use lab::{
    network::PodNet,
    node::VIP,
    protocol::{APP, Dial, ROOT},
};
use sidetrack_common::rule::Rule;

use super::{PodFixture, at, maps};
use crate::fixture;

/// What an application can cause whenever it likes.
const CAUSED: [Rule; 6] = [
    Rule::NoRoute,
    Rule::BoundDevice,
    Rule::RoutingHeader,
    Rule::UnknownTarget,
    Rule::SidecarRefused,
    Rule::NoListener,
];

/// A connection for each of them; the last comes from outside.
fn dials(pod: &PodNet) -> [Dial; 6] {
    let out = |to: &str, port| Dial::new(&APP, at(to, port));
    let mut bound = out(VIP, 80);
    bound.device = Some("eth0".to_owned());
    let mut by_header = out(fixture::VIP[1], 80);
    by_header.segment = Some(at("fd77::fe", 0).ip());
    [
        out("224.0.0.9", 80),
        bound,
        by_header,
        out("127.128.0.9", 15001),
        out(VIP, 80),
        Dial::new(&ROOT, std::net::SocketAddr::new(pod.v4, 80)),
    ]
}

kernel_test!(refusals_of_a_pod_leave_room_for_the_others);
fn refusals_of_a_pod_leave_room_for_the_others() -> Result<()> {
    const ROUNDS: usize = 8;
    let mut fixture = PodFixture::new()?;
    fixture.lab.add_outside(fixture::VIP[1])?;
    let other = fixture.lab.pod("other", 3)?;
    fixture.lab.enroll("other", &other, &[])?;
    ensure!(other.actor()?.dial(Dial::new(&APP, at(VIP, 80)))?.is_err());
    let maps = maps(&fixture.agent.places)?;
    let refusals = Rule::ALL
        .iter()
        .filter(|rule| rule.class().is_refusal())
        .count() as u64;
    let [(_, most_pods), (_, room)] = [maps.pods.usage()?, maps.last_refusals.usage()?];
    ensure!(
        most_pods * refusals <= room,
        "{most_pods} pods, {refusals} reasons, {room} rows"
    );
    let others = fixture.agent.places.cookie("test/other")?;
    let rules_of = |cookie: u64| -> Result<BTreeSet<u32>> {
        let keys = maps.last_refusals.keys()?.into_iter();
        Ok(keys
            .filter(|key| key.netns == cookie)
            .map(|key| key.rule)
            .collect())
    };
    let [outbound @ .., inbound] = dials(&fixture.pod);
    let caused: BTreeSet<u32> = CAUSED.iter().map(|rule| *rule as u32).collect();
    for round in 0..ROUNDS {
        // It is refused while it is enrolled and released as well.
        let done = AtomicBool::new(false);
        thread::scope(|scope| {
            let refused = scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    fixture.client.dial_all(outbound.to_vec())?;
                    fixture.outside.dial(inbound.clone())?.err();
                }
                anyhow::Ok(())
            });
            let tried = (|| {
                fixture.enroll(&[])?;
                let cookie = fixture.agent.places.cookie("test/app")?;
                while rules_of(cookie)? != caused {
                    ensure!(!refused.is_finished(), "the connections have ended");
                    thread::yield_now();
                }
                fixture.lab.release("app")?;
                Ok(cookie)
            })();
            done.store(true, Ordering::Relaxed);
            refused
                .join()
                .map_err(|_| anyhow!("the connections panicked"))??;
            let remaining = rules_of(tried?)?;
            ensure!(remaining.is_empty(), "round {round}: {remaining:?} remain");
            anyhow::Ok(())
        })?;
        let rows = maps.last_refusals.keys()?;
        ensure!(
            rows.iter().all(|key| key.netns == others),
            "round {round}: {rows:?}"
        );
        ensure!(
            rules_of(others)? == [Rule::SidecarRefused as u32].into(),
            "{rows:?}"
        );
    }
    Ok(())
}
