//! Connections that mean something under some [profiles](crate::profiles) only.

use std::net::SocketAddr;

use lab::protocol::ROOT;

use super::{Case, Family, Matrix, Origin, dial, ip};
use crate::profiles::{More, Profile};

/// What a neighbor calls: loopback addresses, and one of each range of sidetrack's targets.
const OF_LOOPBACK_V4: [&str; 6] = [
    "127.0.0.1",
    "127.0.0.2",
    "127.0.0.6",
    "127.64.1.1",
    "127.128.1.1",
    "10.77.0.2",
];
const OF_LOOPBACK_V6: [&str; 2] = ["100:0:0:1::1", "fd77::2"];

impl Matrix {
    /// What a profile adds.
    pub(super) fn under(&self, profile: &Profile, cases: &mut Vec<Case>) {
        for more in profile.more {
            match more {
                More::Neighbor => self.by_neighbor(cases),
                More::ForeignSource => self.by_foreign_source(cases),
                More::Marked => self.by_other_marks(cases),
                // Counted rather than compared one by one.
                More::Crowd(_) => {}
            }
        }
    }

    fn by_neighbor(&self, cases: &mut Vec<Case>) {
        let addresses = match self.family {
            Family::V4 => &OF_LOOPBACK_V4[..],
            Family::V6 => &OF_LOOPBACK_V6,
        };
        for to in addresses {
            for port in [22, 80, 15001, 15006, 15008] {
                cases.push(Case {
                    from: Origin::Neighbor,
                    name: format!("neighbor by eth0 to {}", SocketAddr::new(ip(to), port)),
                    ..Case::inbound(dial(&ROOT, ip(to), port))
                });
            }
        }
    }

    fn by_foreign_source(&self, cases: &mut Vec<Case>) {
        let fixed = self.fixed;
        for (who, creator) in &self.both {
            for source in [fixed.service, fixed.gateway] {
                for to in [fixed.service, fixed.own, fixed.second, fixed.loopback] {
                    let mut dial = dial(creator, ip(to), 80);
                    dial.source = Some(SocketAddr::new(ip(source), 0));
                    cases.push(Case::outbound(who, dial));
                }
            }
        }
    }

    fn by_other_marks(&self, cases: &mut Vec<Case>) {
        let fixed = self.fixed;
        for (who, creator) in &self.both {
            for mark in [1, 0x8000, 0x539] {
                for to in [fixed.service, fixed.own, fixed.second, fixed.loopback] {
                    let mut dial = dial(creator, ip(to), 80);
                    dial.mark = mark;
                    cases.push(Case::outbound(&format!("{who}, mark {mark:#x},"), dial));
                }
            }
        }
    }
}
