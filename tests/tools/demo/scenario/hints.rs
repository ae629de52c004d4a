//! What to try in a demo that stays up.

use lab::agent::binary;

use super::{APP_UID, URL, pods::log_path};
use crate::environment::{Environment, HTTPBIN, NODE, UBUNTU, node};

/// For --keep.
pub fn what_to_try(environment: &Environment) {
    let binary = binary().map_or_else(
        |_| "sidetrack".into(),
        |path| path.canonicalize().unwrap_or(path),
    );
    let bpffs = environment.places.bpffs.display();
    let pins = environment.places.pins();
    let pins = pins.display();
    let socket = environment.places.socket.display();
    let cgroup = environment.places.cgroup.display();
    let netns = UBUNTU.netns();
    println!(
        "
== It stays up. Try:

# a shell as the app in pod ubuntu, then in it: curl -sv {URL}
sh -c 'echo $$ > {cgroup}/ubuntu/cgroup.procs; exec ip netns exec {netns} setpriv --reuid {APP_UID} --regid {APP_UID} --clear-groups bash'

# the agent's state, and what is loaded
{binary} status --bpffs {bpffs} --socket {socket}
{binary} pods --bpffs {bpffs} --socket {socket}
bpftool cgroup show {cgroup}
bpftool map dump pinned {pins}/maps/POLICY_BY_ID

# the sidecars' access logs
tail -f {ubuntu} {httpbin}

# from the node ({NODE}) straight to the app: it passes httpbin's sidecar as well
ip netns exec {node} curl -s http://{ip}/headers

# take a pod out, put it back
mv {pods}/ubuntu.yaml /tmp/ && sleep 1 && mv /tmp/ubuntu.yaml {pods}/

# remove everything
cargo xtask demo --down",
        binary = binary.display(),
        ubuntu = log_path(UBUNTU),
        httpbin = log_path(HTTPBIN),
        node = node(),
        ip = HTTPBIN.ip,
        pods = environment.places.pods.display(),
    );
}
