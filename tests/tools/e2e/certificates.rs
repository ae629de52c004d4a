//! What cert-manager does for the webhook's component, on clusters without it: its kinds exist, and the webhook has
//! a certificate that the API server accepts.

use anyhow::Result;
use serde_json::{Value, json};

use crate::{helm::NAMESPACE, kubectl::Kubectl};

/// What is installed here and nowhere else.
const LABEL: &str = "sidetrack.dev/e2e";
/// The webhook's Service as the API server calls it.
const HOST: &str = "sidetrack-webhook.sidetrack-system.svc";
/// Where the webhook reads its certificate.
const SECRET: &str = "sidetrack-webhook-tls";

/// Gives the webhook a certificate where there is no cert-manager.
pub fn stand_in(kube: &Kubectl) -> Result<()> {
    let kinds = kube.run(&["get", "crd", "-o", "name"])?;
    if kinds.contains("certificates.cert-manager.io") && !is_ours(kube)? {
        return Ok(());
    }
    kube.apply(&["Certificate", "Issuer"].map(kind))?;
    let label = format!("{LABEL}=");
    let words = [
        "wait",
        "--for=condition=Established",
        "crd",
        "-l",
        &label,
        "--timeout=15s",
    ];
    kube.run(&words)?;
    let made = rcgen::generate_simple_self_signed(vec![HOST.to_owned()])?;
    kube.apply(&[json!({
        "apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/tls",
        "metadata": {"name": SECRET, "namespace": NAMESPACE},
        "stringData": {"tls.crt": made.cert.pem(), "tls.key": made.signing_key.serialize_pem()},
    })])
}

/// Whether the kinds are those of [`stand_in`].
fn is_ours(kube: &Kubectl) -> Result<bool> {
    let label = format!("{LABEL}=");
    let kinds = kube.run(&["get", "crd", "-l", &label, "-o", "name"])?;
    Ok(kinds.contains("certificates.cert-manager.io"))
}

/// A kind of cert-manager's, with whatever fields.
fn kind(kind: &str) -> Value {
    let singular = kind.to_lowercase();
    let plural = format!("{singular}s");
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("{plural}.cert-manager.io"), "labels": {LABEL: ""},
            "annotations": {"api-approved.kubernetes.io": "unapproved, of a test"}},
        "spec": {
            "group": "cert-manager.io", "scope": "Namespaced",
            "names": {"kind": kind, "plural": plural, "singular": singular},
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {
                "type": "object", "x-kubernetes-preserve-unknown-fields": true,
            }}}],
        },
    })
}

/// Has the API server accept the certificate of [`stand_in`].
pub fn trust(kube: &Kubectl) -> Result<()> {
    if !is_ours(kube)? {
        return Ok(());
    }
    let secret = kube.get(&["-n", NAMESPACE, "secret", SECRET])?;
    let patch = ["0", "1"].map(|number| {
        let path = format!("/webhooks/{number}/clientConfig/caBundle");
        json!({"op": "add", "path": path, "value": secret["data"]["tls.crt"]})
    });
    let patch = json!(patch).to_string();
    let words = [
        "patch",
        "mutatingwebhookconfiguration",
        "zz-sidetrack",
        "--type=json",
        "-p",
        &patch,
    ];
    kube.run(&words).map(drop)
}

/// Removes the kinds that [`stand_in`] has made.
pub fn remove(kube: &Kubectl) -> Result<()> {
    let label = format!("{LABEL}=");
    kube.run(&["delete", "crd", "-l", &label]).map(drop)
}
