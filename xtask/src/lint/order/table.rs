//! Which crate may use which, and the order of the modules of each.
//!
//! To move an arrow is a decision: change the table in the commit that does it, and say why there.

/// The crates of the workspace from the bottom up, each with those that it may use.
pub const CRATES: &[(&str, &[&str])] = &[
    ("sidetrack-common", &[]),
    ("sidetrack-ebpf", &["sidetrack-common"]),
    ("sidetrack-policy", &["sidetrack-common"]),
    ("sidetrack-base", &["sidetrack-policy"]),
    (
        "sidetrack-reconcile",
        &["sidetrack-common", "sidetrack-policy"],
    ),
    (
        "sidetrack-datapath",
        &[
            "sidetrack-common",
            "sidetrack-policy",
            "sidetrack-reconcile",
        ],
    ),
    (
        "sidetrack-live",
        &["sidetrack-common", "sidetrack-policy", "sidetrack-base"],
    ),
    ("sidetrack-webhook", &["sidetrack-policy", "sidetrack-base"]),
    (
        "kubectl-sidetrack",
        &["sidetrack-policy", "sidetrack-base", "sidetrack-live"],
    ),
    (
        "sidetrack",
        &[
            "sidetrack-common",
            "sidetrack-policy",
            "sidetrack-base",
            "sidetrack-reconcile",
            "sidetrack-datapath",
            "sidetrack-live",
        ],
    ),
    (
        "sidetrack-tests",
        &[
            "sidetrack",
            "sidetrack-base",
            "sidetrack-common",
            "sidetrack-datapath",
            "sidetrack-live",
            "sidetrack-policy",
            "sidetrack-reconcile",
        ],
    ),
    ("xtask", &[]),
];

/// The order of modules: the crate's sources, a room below them (empty for the crate itself), and its modules from the top
/// down. A module uses only those below it. `self` is the room's own file: at the top where it only puts the others
/// together, at the bottom where they share what it defines.
pub const ROOMS: &[(&str, &str, &[&str])] = &[
    (
        "common/src",
        "",
        &[
            "flow", "event", "decide", "policy", "dns", "pod", "count", "conn", "target",
            "forward", "names", "task", "btf", "rule", "ids", "addr", "self",
        ],
    ),
    (
        "agent/policy/src",
        "",
        &[
            "self",
            "webhook",
            "migration",
            "select",
            "mesh",
            "sources",
            "parse",
            "rules",
            "manifest",
            "policy",
            "compiled",
            "dialect",
            "record",
            "facts",
            "arguments",
            "names",
            "inputs",
            "error",
            "interfaces",
            "ids",
            "pod_ref",
            "text",
        ],
    ),
    ("agent/policy/src", "parse", &["self", "values", "reader"]),
    ("agent/policy/src", "policy", &["notes", "compile", "self"]),
    (
        "agent/policy/src",
        "rules",
        &[
            "self", "tables", "outbound", "mangle", "inbound", "dns", "lines",
        ],
    ),
    (
        "agent/policy/src",
        "webhook",
        &[
            "review",
            "update",
            "patch",
            "self",
            "admission",
            "pod",
            "validation",
        ],
    ),
    (
        "agent/reconcile/src",
        "",
        &[
            "self",
            "core",
            "state",
            "selected",
            "node",
            "repairs",
            "policies",
            "plan",
            "listing",
            "events",
            "cni",
            "allowance",
        ],
    ),
    ("agent/reconcile/src", "policies", &["self", "share"]),
    (
        "agent/reconcile/src",
        "repairs",
        &["text", "backoff", "self"],
    ),
    (
        "agent/live/src",
        "",
        &[
            "top", "trace", "self", "history", "sidecar", "screen", "counts",
        ],
    ),
    (
        "agent/live/src",
        "top",
        &[
            "run", "meter", "draw", "view", "wrap", "columns", "report", "self",
        ],
    ),
    (
        "agent/live/src",
        "trace",
        &["summary", "line", "self", "flags"],
    ),
    (
        "agent/kubectl/src",
        "",
        &[
            "self",
            "trace",
            "top",
            "status",
            "pass",
            "migrate",
            "doctor",
            "connectivity",
            "pods",
            "check",
            "output",
            "kernel",
            "ask",
            "exec",
            "cluster",
            "flags",
            "agents",
        ],
    ),
    (
        "agent/kubectl/src",
        "connectivity",
        &["self", "start", "report", "place", "cases", "manifests"],
    ),
    ("agent/kubectl/src", "pods", &["compare", "self", "known"]),
    ("agent/kubectl/src", "status", &["self", "report"]),
    (
        "agent/base/src",
        "",
        &[
            "self",
            "mesh_flags",
            "mesh_settings",
            "duration",
            "files",
            "http",
            "log",
            "runtime",
        ],
    ),
    (
        "agent/webhook/src",
        "",
        &["self", "run", "tls", "serve", "readers", "body"],
    ),
    (
        "agent/datapath/src",
        "",
        &["reconcile", "node", "rows", "netns", "kernel", "self"],
    ),
    (
        "agent/src",
        "",
        &[
            "cli", "daemon", "cleanup", "server", "sources", "observe", "cni", "client", "api",
            "self",
        ],
    ),
    (
        "xtask/src",
        "",
        &[
            "self",
            "lint",
            "mutants",
            "vm",
            "test",
            "soak",
            "tool",
            "image",
            "fuzz",
            "workspace",
            "crates",
            "build",
            "setup",
            "toolchain",
            "prometheus",
            "run",
            "progress",
        ],
    ),
    (
        "xtask/src",
        "lint",
        &["self", "versions", "order", "names", "source"],
    ),
];
