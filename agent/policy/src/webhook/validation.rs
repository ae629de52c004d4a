//! The container that replaces a mesh's init container. It ends when connections of the pod are redirected, so
//! that no app starts before that.

use k8s_openapi::api::core::v1::{Container, ResourceRequirements};
use serde_json::{Value, json};

use sidetrack_common::{
    addr::Addr,
    decide::{self, Outbound, Owner, Verdict},
    pod::IfaceRule,
    rule::Rule,
};

use crate::{
    dialect::Dialect,
    names::InjectedNames,
    policy::Policy,
    rules::{KnownRoutes, ListTables},
    text::shortened,
};

/// The port that `sidetrack validate` dials; nothing listens on it.
pub const PROBE_PORT: u16 = 15002;
/// What it dials instead of the sidecar's own address with `--outside`: TEST-NET-1 of RFC 5737.
const OUTSIDE: [u8; 4] = [192, 0, 2, 1];
/// A user that is neither the proxy nor an application.
const UNPRIVILEGED: u32 = 65534;
/// Name of the container.
pub const VALIDATION: &str = "sidetrack-validation";
/// The largest user or group id that the API accepts (`IsValidUserID` in k8s.io/apimachinery).
const LARGEST_ID: u32 = i32::MAX as u32;

/// The validation container of a pod with this policy. It gets the CPU and memory of istio-init: a
/// quota or a limit range may require figures.
///
/// # Errors
/// If the API would refuse the container.
pub fn container(policy: &Policy, replaced: &Container, image: &str) -> Result<Value, String> {
    let built_in = Policy::default();
    // It runs as the proxy, whose other connections are not redirected; where those to the pod are neither, as somebody else.
    let is_outside = policy.dialect == Dialect::Linkerd;
    let id = |ids: &[u32], built_in: &[u32]| {
        let id = ids.iter().chain(built_in).next().copied();
        let id = id.ok_or("the proxy has no user or group")?;
        if id > LARGEST_ID {
            return Err(format!(
                "the proxy's user or group {id} is not valid for a container; the largest is {LARGEST_ID}"
            ));
        }
        Ok(id)
    };
    let (uid, gid) = match is_outside {
        true => (UNPRIVILEGED, UNPRIVILEGED),
        false => (
            id(&policy.proxy_uids, &built_in.proxy_uids)?,
            id(&policy.proxy_gids, &built_in.proxy_gids)?,
        ),
    };
    let owner = Owner { uid, gid };
    match is_outside {
        true => check_probe(policy, owner, Addr::UNSPECIFIED, Addr::v4(OUTSIDE))?,
        false => check_probe(policy, owner, Addr::LOOPBACK_V4, Addr::SELF_V4)?,
    }
    // Long, because a pod that is never restarted fails with it. A new agent, or a node with many new
    // pods, may need a minute.
    let mut args = vec!["validate".to_owned(), "--timeout=120".to_owned()];
    for (flag, port, usual) in [
        (
            "--outbound-port",
            policy.outbound_port,
            built_in.outbound_port,
        ),
        ("--inbound-port", policy.inbound_port, built_in.inbound_port),
    ] {
        if port != usual {
            args.push(format!("{flag}={port}"));
        }
    }
    if is_outside {
        args.push("--outside".to_owned());
    }
    if policy.ipv4_only {
        args.push("--ipv6=no".to_owned());
    }
    Ok(json!({
        "name": VALIDATION,
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "args": args,
        "resources": resources(replaced)?,
        "securityContext": {
            "allowPrivilegeEscalation": false,
            "capabilities": {"drop": ["ALL"]},
            "privileged": false,
            "readOnlyRootFilesystem": true,
            "runAsGroup": gid,
            "runAsNonRoot": uid != 0,
            "runAsUser": uid,
            // Required by the Pod Security Standard `restricted`.
            "seccompProfile": {"type": "RuntimeDefault"},
        },
    }))
}

/// Checks that the policy redirects the connection that the container waits for.
fn check_probe(
    policy: &Policy,
    owner: Owner,
    source: Addr,
    destination: Addr,
) -> Result<(), String> {
    let probe = Outbound {
        owner,
        source,
        destination,
        port: PROBE_PORT,
        mark: 0,
        routing_header: false,
        captured_family: true,
    };
    let tables = ListTables {
        policy,
        routes: KnownRoutes::default(),
        before_sidecar: false,
    };
    let lo_included = policy.iface("lo").rule != IfaceRule::Excluded as u32;
    let decision = decide::outbound(&policy.compile().row(), &probe, &tables);
    let rule = if lo_included {
        decision.rule
    } else {
        Rule::OutInterface
    };
    // The container listens on both capture ports.
    match decision.verdict {
        Verdict::Redirect { .. } | Verdict::Assign { .. } if lo_included => Ok(()),
        _ => Err(format!(
            "the container that replaces {} waits until a connection of user {} to {destination}:{PROBE_PORT} is redirected, but the pod's policy never redirects it: {}",
            InjectedNames::of(policy.dialect.mesh()).init,
            owner.uid,
            rule.describe()
        )),
    }
}

fn resources(replaced: &Container) -> Result<Value, String> {
    let has_figures = |given: &&ResourceRequirements| {
        let mut lists = [&given.limits, &given.requests].into_iter().flatten();
        lists.any(|list| !list.is_empty())
    };
    match replaced.resources.as_ref().filter(has_figures) {
        Some(given) => serde_json::to_value(given).map_err(|error| shortened(&error.to_string())),
        None => Ok(json!({
            "limits": {"cpu": "100m", "memory": "64Mi"},
            "requests": {"cpu": "10m", "memory": "16Mi"},
        })),
    }
}

#[cfg(test)]
mod tests;
