//! What the pictures show: four pods, one of them without a sidecar that listens and one that waits, and
//! connections all the time.

use std::{
    path::Path,
    process::{Child, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use anyhow::Result;
use lab::{
    actor::Actor,
    agent::Agent,
    command::die_with_parent,
    network::{Lab, PodNet, manifest},
    node::VIP,
    protocol::{APP, Dial, Identity, ROOT},
    sidecar,
};

/// An address that the pod `web` has no route to.
const NOWHERE: &str = "203.0.113.9";

/// Pods and traffic. Fields drop in order: processes before what they run in.
pub struct Scene {
    traffic: Vec<JoinHandle<()>>,
    stop: Arc<AtomicBool>,
    clients: [Child; 2],
    _actors: Vec<Actor>,
    _agent: Agent,
    pub lab: Lab,
}

/// Connections from one place, again and again.
struct Dialer {
    actor: Actor,
    dials: Vec<Dial>,
    pause: Duration,
}

impl Scene {
    /// Starts everything.
    pub fn new() -> Result<Self> {
        let mut lab = Lab::new()?;
        lab.add_outside(VIP)?;
        let outside = lab.outside();
        let server = outside.actor()?;
        for port in [80, 5432] {
            sidecar::listen(&server, &Identity::of(0), port)?;
        }
        let [api, cart, web] = [("api", 2), ("cart", 3), ("web", 4)]
            .map(|(name, number)| lab.pod(name, number).map(|pod| (name, pod)));
        let pods = [api?, cart?, web?];
        let excluded = [("traffic.sidecar.istio.io/excludeOutboundPorts", "5432")];
        for (name, pod) in &pods {
            lab.write_manifest(name, &manifest(name, pod, &excluded))?;
        }
        let mut later = pods[0].1.clone();
        later.netns = "not-there-yet".to_owned();
        lab.write_manifest("new", &manifest("new", &later, &[]))?;
        let agent = Agent::start(lab.places())?;
        for (name, _) in &pods {
            agent.places.wait_enrolled(&format!("test/{name}"))?;
        }
        let [(_, api), (_, cart), (_, web)] = &pods;
        web.ip("route add unreachable 203.0.113.0/24")?;
        let actors = vec![
            server,
            sidecar::start(api, &[80])?,
            sidecar::start(web, &[80])?,
        ];
        let stop = Arc::new(AtomicBool::new(false));
        let clients = [
            curl(web, &format!("http://{VIP}/"), "0.1")?,
            curl(web, &format!("http://{NOWHERE}/"), "2.5")?,
        ];
        let dialers = dialers(&outside, api, cart, web)?;
        let traffic = dialers.into_iter().map(|dialer| dialer.start(&stop));
        Ok(Self {
            traffic: traffic.collect(),
            stop,
            clients,
            _actors: actors,
            _agent: agent,
            lab,
        })
    }
}

/// Asks for a page again and again, as the app's user.
fn curl(pod: &PodNet, url: &str, pause: &str) -> Result<Child> {
    let script = "while sleep $1; do curl --silent --max-time 0.3 $0; done";
    let mut command = pod.command(1000, Path::new("/bin/sh"), &["-c", script, url, pause]);
    die_with_parent(&mut command)
        .stdin(Stdio::null())
        .stdout(Stdio::null());
    Ok(command.spawn()?)
}

fn dialers(outside: &PodNet, api: &PodNet, cart: &PodNet, web: &PodNet) -> Result<Vec<Dialer>> {
    let to = |address: &str, port| {
        Dial::new(
            &APP,
            format!("{address}:{port}").parse().expect("an address"),
        )
    };
    let from_outside = |pod: &PodNet| Dial::new(&ROOT, (pod.v4, 80).into());
    let dialer = |pod: &PodNet, dials: Vec<Dial>, pause| {
        anyhow::Ok(Dialer {
            actor: pod.actor()?,
            dials,
            pause: Duration::from_millis(pause),
        })
    };
    Ok(vec![
        dialer(web, vec![to(VIP, 5432)], 700)?,
        dialer(api, vec![to(VIP, 80)], 250)?,
        dialer(cart, vec![to(VIP, 80)], 800)?,
        dialer(outside, vec![from_outside(api), from_outside(web)], 120)?,
    ])
}

impl Dialer {
    fn start(self, stop: &Arc<AtomicBool>) -> JoinHandle<()> {
        let stop = Arc::clone(stop);
        thread::spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                // Some of them are meant to fail.
                if self.actor.dial_all(self.dials.clone()).is_err() {
                    return;
                }
                thread::sleep(self.pause);
            }
        })
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for client in &mut self.clients {
            let _ = client.kill();
            let _ = client.wait();
        }
        for dialer in self.traffic.drain(..) {
            let _ = dialer.join();
        }
    }
}
