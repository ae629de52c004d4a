//! Connections of a sidecar in mode TPROXY to its app.

use std::net::SocketAddr;

use lab::protocol::{Identity, PROXY, ROOT};

use super::{Case, Matrix, dial, ip};

impl Matrix {
    /// From the address of a client, as a sidecar in mode TPROXY calls the app; and with the mark alone.
    pub(super) fn by_mark(&self, cases: &mut Vec<Case>) {
        let Some(mark) = self.mark else { return };
        let fixed = self.fixed;
        let sidecar = Identity::with_gid(ROOT.uid, PROXY.gid);
        let clients = [fixed.service, fixed.gateway, fixed.own];
        // To another host the mark keeps it in the pod, as under iptables.
        for to in [fixed.own, fixed.second, fixed.loopback, fixed.gateway] {
            for from in clients {
                for port in &self.ports {
                    let mut dial = dial(&sidecar, ip(to), *port);
                    dial.source = Some(SocketAddr::new(ip(from), 0));
                    dial.mark = mark;
                    dial.transparent = true;
                    cases.push(Case::outbound("transparent sidecar, with the mark,", dial));
                }
            }
            let mut dial = dial(&sidecar, ip(to), 80);
            dial.mark = mark;
            cases.push(Case::outbound("transparent sidecar, with the mark,", dial));
        }
    }
}
