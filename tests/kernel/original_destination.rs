//! SO_ORIGINAL_DST is answered at the level of the connection's family; at the other level the kernel's
//! own answer stays.

use anyhow::{Context as _, Result, anyhow, ensure};
use lab::{
    protocol::{APP, Connected, Dial, Names, PROXY, ROOT},
    sidecar,
};

use crate::fixture::{POD, PodFixture, VIP, at, original};

/// What the other family's level answers.
fn other_level(names: &Names, family: usize) -> Result<std::net::SocketAddr, i32> {
    [names.original_v6, names.original_v4][family]
}

/// A connection of a family, from inside the pod.
fn dial(fixture: &PodFixture, dial: Dial) -> Result<Connected> {
    let to = dial.destination;
    fixture
        .client
        .dial(dial)?
        .map_err(|errno| anyhow!("to {to}: errno {errno}"))
}

/// A destination, dialed on an IPv6 socket even if it is IPv4.
fn on_v6_socket(destination: std::net::SocketAddr) -> Dial {
    let mut dial = Dial::new(&APP, destination);
    dial.mapped = destination.is_ipv4();
    dial
}

kernel_test!(only_the_level_of_the_family_answers);
fn only_the_level_of_the_family_answers() -> Result<()> {
    let fixture = PodFixture::new()?;
    fixture.lab.add_outside(VIP[1])?;
    let _sidecar = sidecar::start(&fixture.pod, &[80])?;
    for family in [0, 1] {
        let own = at(POD[family], 80);
        // The kernel's answers, from a pod that is not enrolled; of an accepted socket as well.
        let plain = dial(&fixture, Dial::new(&APP, own))?;
        let plain_v6 = dial(&fixture, on_v6_socket(own))?;
        let refusals = [
            other_level(&plain.client, family),
            other_level(&plain.server, family),
            other_level(&plain_v6.client, family),
        ];
        ensure!(
            refusals.iter().all(Result::is_err),
            "the kernel answers at the other level: {refusals:?}"
        );

        fixture.enroll(&[])?;
        for (case, port) in [
            (Dial::new(&APP, at(VIP[family], 80)), 15001),
            (Dial::new(&APP, own), 80),
            (Dial::new(&PROXY, own), 15006),
            (on_v6_socket(at(VIP[family], 80)), 15001),
            (on_v6_socket(own), 80),
        ] {
            let to = case.destination;
            let what = || format!("uid {} to {to}, mapped: {}", case.creator.uid, case.mapped);
            let client = refusals[if case.mapped { 2 } else { 0 }];
            let connected = dial(&fixture, case.clone()).with_context(what)?;
            ensure!(connected.accepted_by == port, "{}: {connected:?}", what());
            ensure!(
                original(&connected.client, to) == Ok(to)
                    && original(&connected.server, to) == Ok(to),
                "{}: {connected:?}",
                what()
            );
            ensure!(
                other_level(&connected.client, family) == client
                    && other_level(&connected.server, family) == refusals[1],
                "{}: the other level answers: {connected:?}, the kernel alone: {refusals:?}",
                what()
            );
        }
        // An accepted socket without a record answers its own address.
        let arrived = fixture.outside.connect(&ROOT, own)?;
        ensure!(
            arrived.accepted_by == 15006
                && original(&arrived.server, own) == Ok(own)
                && other_level(&arrived.server, family) == refusals[1],
            "{arrived:?}, the kernel alone: {refusals:?}"
        );
        fixture.lab.release("app")?;
    }
    Ok(())
}
