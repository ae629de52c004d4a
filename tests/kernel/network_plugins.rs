//! Pods as other network plugins connect them, and what the node translates behind them. Each is compared with the same
//! pod before it is enrolled.

use anyhow::{Result, ensure};
use lab::{
    actor::Actor,
    agent::Agent,
    command::run,
    network::{Lab, PodNet, Wire},
    protocol::{APP, Dial, PROXY, ROOT},
    sidecar,
};

use crate::fixture::{Arrives, POD, VIP, at, check, original};

/// A pod, its network, and an outside with services.
struct Plugged {
    _sidecar: Actor,
    client: Actor,
    outside: Actor,
    _agent: Agent,
    _pod: PodNet,
    lab: Lab,
}

impl Plugged {
    /// Checks that both ends reach each other, and enrolls the pod.
    fn new(add: impl FnOnce(&mut Lab) -> Result<PodNet>) -> Result<Self> {
        let mut lab = Lab::new()?;
        VIP.iter()
            .try_for_each(|address| lab.add_outside(address))?;
        let pod = add(&mut lab)?;
        let outside = lab.outside().actor()?;
        for port in [80, 8080] {
            sidecar::listen(&outside, &ROOT, port)?;
        }
        let _agent = Agent::start(lab.places())?;
        let plugged = Self {
            _sidecar: sidecar::start(&pod, &[80])?,
            client: pod.actor()?,
            outside,
            _agent,
            _pod: pod.clone(),
            lab,
        };
        for family in [0, 1] {
            let out = plugged.client.connect(&APP, at(VIP[family], 80))?;
            let inward = plugged.outside.connect(&ROOT, at(POD[family], 80))?;
            let ports = [out.accepted_by, inward.accepted_by];
            ensure!(ports == [80, 80], "before it is enrolled: {ports:?}");
        }
        let excluded = [("traffic.sidecar.istio.io/excludeOutboundPorts", "8080")];
        plugged.lab.enroll("app", &pod, &excluded)?;
        Ok(plugged)
    }

    /// Every way of a connection, in both families.
    fn check(&self) -> Result<()> {
        for (own, vip) in POD.into_iter().zip(VIP) {
            let [to, excluded] = [80, 8080].map(|port| at(vip, port));
            let of_app = self.client.dial(Dial::new(&APP, to))?;
            check(&of_app, Arrives::Sidecar(15001), own, to)?;
            for (who, to) in [(PROXY, to), (APP, excluded)] {
                let direct = self.client.connect(&who, to)?;
                ensure!(direct.accepted_by == to.port(), "{direct:?}");
                let (client, server) = (&direct.client, &direct.server);
                ensure!(
                    client.peer == to && server.peer == client.local,
                    "{direct:?}"
                );
            }
            let to = at(own, 80);
            let inward = self.outside.connect(&ROOT, to)?;
            ensure!(inward.accepted_by == 15006, "{inward:?}");
            ensure!(original(&inward.server, to) == Ok(to), "{inward:?}");
            ensure!(inward.server.peer == inward.client.local, "{inward:?}");
        }
        Ok(())
    }
}

kernel_test!(a_pod_with_a_gateway_on_no_network);
/// ptp, Calico, the plugins of clouds.
fn a_pod_with_a_gateway_on_no_network() -> Result<()> {
    Plugged::new(|lab| lab.pod_by(Wire::PointToPoint, "app", 2))?.check()
}

kernel_test!(a_pod_with_macvlan, needs MACVLAN);
fn a_pod_with_macvlan() -> Result<()> {
    Plugged::new(|lab| lab.pod_by(Wire::Child("macvlan", "bridge"), "app", 2))?.check()
}

kernel_test!(a_pod_with_ipvlan, needs IPVLAN);
fn a_pod_with_ipvlan() -> Result<()> {
    Plugged::new(|lab| lab.pod_by(Wire::Child("ipvlan", "l2"), "app", 2))?.check()
}

/// Where a node translates a service to.
const ENDPOINT: [&str; 2] = ["10.109.0.9", "fd99::9"];

/// A node that translates services with one of the builds of iptables, as kube-proxy does.
fn services_of_the_node(build: &str) -> Result<()> {
    let plugged = Plugged::new(|lab| lab.pod("app", 2))?;
    let node = plugged.lab.outside().netns;
    for (family, tables) in ["iptables", "ip6tables"].into_iter().enumerate() {
        let endpoint = at(ENDPOINT[family], 8080);
        plugged.lab.add_outside(ENDPOINT[family])?;
        run(&format!(
            "ip netns exec {node} {tables}-{build} -t nat -A PREROUTING -p tcp -d {} --dport 80 -j DNAT --to-destination {endpoint}",
            VIP[family]
        ))?;
        let to = at(VIP[family], 80);
        let of_app = plugged.client.dial(Dial::new(&APP, to))?;
        check(&of_app, Arrives::Sidecar(15001), POD[family], to)?;
        // What the sidecar dials is the service, which the node translates.
        let of_proxy = plugged.client.connect(&PROXY, to)?;
        ensure!(of_proxy.accepted_by == 8080, "{of_proxy:?}");
        ensure!(of_proxy.client.peer == to, "{of_proxy:?}");
        ensure!(of_proxy.server.local == endpoint, "{of_proxy:?}");
    }
    Ok(())
}

kernel_test!(services_by_iptables_on_the_node);
fn services_by_iptables_on_the_node() -> Result<()> {
    services_of_the_node("legacy")
}

kernel_test!(services_by_nftables_on_the_node);
fn services_by_nftables_on_the_node() -> Result<()> {
    services_of_the_node("nft")
}
