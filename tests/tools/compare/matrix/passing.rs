//! Connections that only pass through a pod.

use std::net::IpAddr;

use lab::{
    network::BESIDE,
    protocol::{Dial, ROOT},
};

use super::{Case, Matrix, Origin, dial, ip, is_broadcast};
use crate::pair::TAP;

impl Case {
    /// From the machine, to a pod or through it.
    fn of_machine(dial: Dial, is_forwarded: bool) -> Self {
        Self {
            name: format!("by {TAP} to {}", dial.destination),
            arrives_by: Some(TAP),
            from: Origin::Machine,
            is_forwarded,
            dial,
        }
    }
}

impl Matrix {
    /// From a machine inside the pod and to it, by every interface.
    pub(super) fn passing(&self, cases: &mut Vec<Case>) {
        let fixed = self.fixed;
        let of_machine = |to: IpAddr, port: u16| {
            let own = [fixed.own, fixed.second].map(ip);
            Case::of_machine(dial(&ROOT, to, port), !own.contains(&to))
        };
        for port in &self.ports {
            for to in [fixed.service, fixed.own] {
                cases.push(of_machine(ip(to), *port));
            }
            for device in [None, Some(BESIDE.to_owned())] {
                let mut to_machine = dial(&ROOT, ip(fixed.machine), *port);
                to_machine.device = device;
                cases.push(Case {
                    is_forwarded: true,
                    ..Case::inbound(to_machine)
                });
            }
        }
        // Rules come before routes, also before the lack of one.
        let elsewhere = self.destinations.iter().filter(|to| {
            let is_group = to.is_multicast() || is_broadcast(**to);
            !is_group && !to.is_loopback() && !to.is_unspecified() && **to != ip("::6")
        });
        for to in elsewhere {
            cases.push(of_machine(*to, 80));
        }
    }
}
