//! Sockets that are bound to an address which is not the pod's.

use anyhow::{Context as _, Result, ensure};
use lab::{
    command::run,
    protocol::{APP, Dial, Manner, ROOT},
    tricks::Privilege,
};

use super::held::{as_usual, pod};
use crate::fixture::{PodFixture, VIP, at};

/// An address that neither the pod nor the outside has.
const FOREIGN: [&str; 2] = ["10.99.0.9", "fd66::9"];

/// Counts SYNs that arrive outside from a foreign address.
struct Foreign<'a>(&'a PodFixture);

impl<'a> Foreign<'a> {
    const COMMANDS: [&'static str; 2] = ["iptables", "ip6tables"];

    fn run(&self, family: usize, arguments: &str) -> Result<String> {
        let netns = self.0.lab.outside().netns;
        let command = Self::COMMANDS[family];
        run(&format!("ip netns exec {netns} {command} -w {arguments}"))
    }

    fn new(fixture: &'a PodFixture) -> Result<Self> {
        let foreign = Self(fixture);
        for (family, from) in FOREIGN.into_iter().enumerate() {
            let rule = format!("-t raw -A PREROUTING -p tcp --syn -s {from} -j ACCEPT");
            foreign.run(family, &rule)?;
        }
        Ok(foreign)
    }

    /// How many since the last call.
    fn count(&self, family: usize) -> Result<u64> {
        let listed = self.run(family, "-t raw -L PREROUTING -Z -nvx")?;
        let rule = listed.lines().find(|line| line.contains(FOREIGN[family]));
        let count = rule.and_then(|rule| rule.split_whitespace().next());
        Ok(count.context("the rule")?.parse()?)
    }
}

kernel_test!(foreign_source_addresses);
/// The redirected SYN stays on lo, and the answer to it has no way back. As uid 0 with CAP_NET_ADMIN the
/// application may set IP_TRANSPARENT, which it may not otherwise.
fn foreign_source_addresses() -> Result<()> {
    let (fixture, _sidecar) = pod()?;
    let foreign = Foreign::new(&fixture)?;
    // The gateway is found without a foreign address, so that later packets need not wait for it.
    for vip in VIP {
        let direct = fixture.dial(at(vip, 80))?;
        ensure!(
            direct.as_ref().is_ok_and(|direct| direct.accepted_by == 80),
            "{direct:?}"
        );
    }
    for enrolled in [false, true] {
        if enrolled {
            fixture.enroll(&[])?;
        }
        for (who, privilege, family, leaves) in [
            // The kernel itself has no route from an address that the host lacks. IPv6 does not look.
            (APP, Privilege::FreeBind, 0, false),
            (APP, Privilege::FreeBind, 1, true),
            (APP, Privilege::Transparent, 0, false),
            (APP, Privilege::Transparent, 1, false),
            (ROOT, Privilege::Transparent, 0, true),
            (ROOT, Privilege::Transparent, 1, true),
        ] {
            let mut dial = Dial::new(&who, at(VIP[family], 80));
            dial.source = Some(at(FOREIGN[family], 0));
            dial.manner = Manner::With(privilege);
            dial.patience_ms = 300;
            let result = fixture.client.dial(dial)?;
            let arrived = foreign.count(family)?;
            let what = format!("{privilege:?} of {} by IPv{}", who.uid, 4 + 2 * family);
            ensure!(result.is_err(), "{what}: {result:?}");
            // Before the pod is enrolled, it shows that the attempt is a real one.
            let expected = leaves && !enrolled;
            ensure!(
                (arrived > 0) == expected,
                "{what}, enrolled: {enrolled}: {arrived} SYNs arrived outside, {result:?}"
            );
        }
    }
    as_usual(&fixture.client)
}
