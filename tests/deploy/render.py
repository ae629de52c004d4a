"""Renders the Helm chart with Helm's own engine and prints as JSON what it creates: objects, hooks (as YAML), notes.

Helm renders for a cluster; this is one that has the kinds the chart uses, has none of the objects but
those it is given, and writes down what it is asked to create.

usage: render.py CHART NAMESPACE [VALUES_JSON [OBJECTS_JSON]]
"""

import asyncio
import base64
import gzip
import json
import os
import re
import sys
import tempfile
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

KINDS = {
    "v1": {
        "Namespace": "namespaces",
        "Secret": "secrets",
        "ServiceAccount": "serviceaccounts",
        "ConfigMap": "configmaps",
        "ResourceQuota": "resourcequotas",
        "Service": "services",
    },
    "apps/v1": {"DaemonSet": "daemonsets", "Deployment": "deployments"},
    "policy/v1": {"PodDisruptionBudget": "poddisruptionbudgets"},
    "admissionregistration.k8s.io/v1": {"MutatingWebhookConfiguration": "mutatingwebhookconfigurations"},
    "networking.k8s.io/v1": {"NetworkPolicy": "networkpolicies"},
    "monitoring.coreos.com/v1": {
        "PodMonitor": "podmonitors",
        "ServiceMonitor": "servicemonitors",
        "PrometheusRule": "prometheusrules",
    },
    "cert-manager.io/v1": {"Issuer": "issuers", "Certificate": "certificates"},
    "rbac.authorization.k8s.io/v1": {
        "ClusterRole": "clusterroles",
        "ClusterRoleBinding": "clusterrolebindings",
        "Role": "roles",
        "RoleBinding": "rolebindings",
    },
}
CLUSTER_WIDE = {"Namespace", "ClusterRole", "ClusterRoleBinding", "MutatingWebhookConfiguration"}
created = []
# Helm's record of the release, the newest last.
records = []
# Objects that are there already, by resource and name.
there = {}


def discovery(path):
    if path == "/version":
        return {"major": "1", "minor": "36", "gitVersion": "v1.36.0"}
    if path == "/api":
        return {"kind": "APIVersions", "versions": ["v1"]}
    if path == "/apis":
        groups = []
        for version in KINDS:
            if "/" in version:
                it = {"groupVersion": version, "version": version.split("/")[1]}
                name = version.split("/")[0]
                groups.append({"name": name, "versions": [it], "preferredVersion": it})
        return {"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}
    for version, kinds in KINDS.items():
        if path == ("/api/" if version == "v1" else "/apis/") + version:
            resources = [
                {"name": name, "singularName": kind.lower(), "kind": kind,
                 "namespaced": kind not in CLUSTER_WIDE,
                 "verbs": ["create", "get", "list", "patch", "update"]}
                for kind, name in kinds.items()
            ]
            return {"kind": "APIResourceList", "groupVersion": version, "resources": resources}
    return None


class Cluster(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def answer(self, code, body):
        text = json.dumps(body).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def do_GET(self):
        path = self.path.split("?")[0]
        found = discovery(path)
        if found is not None:
            return self.answer(200, found)
        if path.endswith("/secrets"):
            return self.answer(200, {"kind": "SecretList", "apiVersion": "v1", "items": []})
        known = there.get(tuple(path.split("/")[-2:]))
        if known is not None:
            return self.answer(200, known)
        self.answer(404, {"kind": "Status", "apiVersion": "v1", "status": "Failure",
                          "reason": "NotFound", "code": 404, "message": "not found"})

    def take(self, code):
        """Takes an object and answers it. Helm's own record of the release is a compressed text in no JSON."""
        body = self.rfile.read(int(self.headers["Content-Length"]))
        kind = self.headers["Content-Type"]
        if "json" in kind:
            created.append(json.loads(body))
        elif record := re.search(rb"H4sI[A-Za-z0-9+/]+=*", body):
            records.append(json.loads(gzip.decompress(base64.b64decode(record.group()))))
        self.send_response(code)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self):
        self.take(201)

    def do_PUT(self):
        self.take(200)

    def do_PATCH(self):
        """What is there stays as it is."""
        self.rfile.read(int(self.headers["Content-Length"]))
        self.do_GET()

    def log_message(self, *_):
        pass


def main(chart, namespace, values="{}", objects="[]"):
    from helm_sdkpy import Configuration, Install

    for known in json.loads(objects):
        there[KINDS[known["apiVersion"]][known["kind"]], known["metadata"]["name"]] = known
    server = ThreadingHTTPServer(("127.0.0.1", 0), Cluster)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with tempfile.TemporaryDirectory() as home:
        for name in ("HELM_CACHE_HOME", "HELM_CONFIG_HOME", "HELM_DATA_HOME", "HOME"):
            os.environ[name] = home
        kubeconfig = os.path.join(home, "kubeconfig")
        with open(kubeconfig, "w") as file:
            json.dump({
                "apiVersion": "v1", "kind": "Config", "current-context": "c",
                "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{server.server_port}"}}],
                "users": [{"name": "c", "user": {}}],
                "contexts": [{"name": "c", "context": {"cluster": "c", "user": "c"}}],
            }, file)
        install = Install(Configuration(namespace=namespace, kubeconfig=kubeconfig))
        asyncio.run(install.run("sidetrack", chart, json.loads(values), wait=False))
    record = records[-1]
    result = {
        "objects": created,
        "hooks": [hook["manifest"] for hook in record.get("hooks") or []],
        "notes": record["info"]["notes"],
    }
    json.dump(result, sys.stdout, indent=1, sort_keys=True)


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except Exception as error:
        sys.exit(f"{type(error).__name__}: {error}")
