//! Connections of the app.

use anyhow::{Context as _, Result, anyhow, ensure};
use lab::protocol::{APP, Dial, PROXY, ROOT};

use super::check_client_or_all;
use crate::{
    facilities::refusal,
    fixture::{
        Arrives::{Fails, Sidecar, Untouched},
        POD, SECOND, SharedFixture, VIP, at,
    },
};

shared_test!(app_to_off_pod);
fn app_to_off_pod(fixture: &SharedFixture) -> Result<()> {
    for creator in [&APP, &ROOT] {
        for family in [0, 1] {
            for port in [80, 443, 15006, 15008, 15021] {
                let to = at(VIP[family], port);
                fixture.row(creator, to, Sidecar(15001), POD[family])?;
            }
            // As istio-cni has it, in pods without istio-init.
            fixture.leaves(creator, at(VIP[family], 15020), POD[family])?;
        }
    }
    // A neighbor on the pod's own subnet.
    let to = at("10.77.0.254", 80);
    fixture.row(&APP, to, Sidecar(15001), POD[0])
}

shared_test!(app_to_loopback);
fn app_to_loopback(fixture: &SharedFixture) -> Result<()> {
    for to in ["127.0.0.1", "127.0.0.2", "127.0.0.6"] {
        fixture.row(&APP, at(to, 80), Untouched, "127.0.0.1")?;
    }
    for to in ["::1", "::6"] {
        fixture.row(&APP, at(to, 80), Untouched, to)?;
    }
    Ok(())
}

shared_test!(app_to_a_target_that_names_nothing);
/// What was dialed is then not known. It must not be the sidecar's own port, or the sidecar dials itself.
fn app_to_a_target_that_names_nothing(fixture: &SharedFixture) -> Result<()> {
    let result = fixture.dial(Dial::new(&APP, at("127.128.3.4", 15001)))?;
    ensure!(result == Err(libc::ECONNREFUSED), "{result:?}");
    let result = fixture.dial(Dial::new(&APP, at("127.0.0.1", 15001)))?;
    let connected = result.map_err(|errno| anyhow!("errno {errno}"))?;
    ensure!(connected.accepted_by == 15001, "{connected:?}");
    Ok(())
}

shared_test!(app_to_own_addresses);
fn app_to_own_addresses(fixture: &SharedFixture) -> Result<()> {
    for own in [POD, SECOND].concat() {
        for port in [80, 15021] {
            fixture.row(&APP, at(own, port), Untouched, own)?;
        }
    }
    Ok(())
}

shared_test!(app_to_the_capture_port_of_another);
fn app_to_the_capture_port_of_another(fixture: &SharedFixture) -> Result<()> {
    for family in [0, 1] {
        let to = at(VIP[family], 15001);
        fixture.row(&APP, to, Sidecar(15001), POD[family])?;
    }
    Ok(())
}

shared_test!(app_bound_to_loopback);
fn app_bound_to_loopback(fixture: &SharedFixture) -> Result<()> {
    for source in ["127.0.0.1", "127.0.0.6"] {
        fixture.row_from(&APP, source, at(POD[0], 80), Untouched, source)?;
        let off_pod = at(VIP[0], 80);
        fixture.row_from(&APP, source, off_pod, Fails(refusal(libc::EINVAL)), "")?;
    }
    // IPv6 differs: the kernel accepts the source, and the rules redirect.
    for source in ["::1", "::6"] {
        fixture.row_from(&APP, source, at(POD[1], 80), Untouched, source)?;
        fixture.row_from(&APP, source, at(VIP[1], 80), Sidecar(15001), source)?;
    }
    Ok(())
}

shared_test!(app_bound_to_an_own_address);
fn app_bound_to_an_own_address(fixture: &SharedFixture) -> Result<()> {
    for family in [0, 1] {
        for source in [POD[family], SECOND[family]] {
            let to = at(VIP[family], 80);
            fixture.row_from(&APP, source, to, Sidecar(15001), source)?;
        }
    }
    Ok(())
}

shared_test!(v4_mapped);
fn v4_mapped(fixture: &SharedFixture) -> Result<()> {
    for (creator, destination, arrives, seen_as) in [
        (&APP, at(VIP[0], 80), Sidecar(15001), POD[0]),
        (&APP, at(POD[0], 80), Untouched, POD[0]),
        (&PROXY, at(POD[0], 80), Sidecar(15006), POD[0]),
        (&PROXY, at(VIP[0], 80), Untouched, POD[0]),
    ] {
        let mut dial = Dial::new(creator, destination);
        dial.mapped = true;
        let result = fixture.dial(dial)?;
        check_client_or_all(&result, arrives, seen_as, destination)
            .with_context(|| format!("uid {} to {destination}", creator.uid))?;
    }
    Ok(())
}
