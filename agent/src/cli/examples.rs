//! Examples in the help of each command.

use clap::Command;

/// Examples by command.
const EXAMPLES: &[(&str, &[&str])] = &[
    (
        "agent",
        &[
            "sidetrack agent --node-name worker-1 --metrics-addr '[::]:9446'",
            "sidetrack agent --pods-dir /etc/sidetrack/pods --default excludeOutboundPorts=3306",
        ],
    ),
    (
        "status",
        &[
            "sidetrack status",
            "sidetrack status --wait shop/web-0 --timeout 30s",
            "sidetrack status --check -o json",
        ],
    ),
    (
        "pods",
        &[
            "sidetrack pods",
            "sidetrack pods -o wide",
            "sidetrack pods -o yaml",
        ],
    ),
    (
        "rules",
        &[
            "sidetrack rules shop/web-0",
            "sidetrack rules -n shop web-0 -6",
            "sidetrack rules --manifest web.yaml -o iptables",
        ],
    ),
    (
        "explain",
        &[
            "sidetrack explain shop/web-0 outbound --dst 10.96.0.1:443",
            "sidetrack explain shop/web-0 outbound --uid 1337 --dst ledger.bank:80",
            "sidetrack explain shop/web-0 inbound --dst 10.244.0.7:8080",
            "sidetrack explain --manifest web.yaml --pod-ip fd00::7 outbound --dst '[fd00::9]:80'",
        ],
    ),
    ("validate", &["sidetrack validate --timeout 30s"]),
    (
        "install-cni",
        &[
            "sidetrack install-cni --cni-timeout 20s",
            "sidetrack install-cni --remove",
        ],
    ),
    ("probe", &["sidetrack probe live", "sidetrack probe ready"]),
    (
        "doctor",
        &[
            "sidetrack doctor",
            "sidetrack doctor --bpffs /sys/fs/bpf --cgroup /sys/fs/cgroup/kubepods.slice -o json",
        ],
    ),
    (
        "cleanup",
        &["sidetrack cleanup --dry-run", "sidetrack cleanup"],
    ),
    (
        "version",
        &["sidetrack version", "sidetrack version -o json"],
    ),
    (
        "completions",
        &[
            "sidetrack completions bash > /usr/share/bash-completion/completions/sidetrack",
            "sidetrack completions zsh > /usr/share/zsh/site-functions/_sidetrack",
            "sidetrack completions fish > /usr/share/fish/vendor_completions.d/sidetrack.fish",
        ],
    ),
    ("man", &["sidetrack man /usr/local/share/man/man1"]),
];

/// Adds the examples.
pub(super) fn add(command: Command) -> Command {
    EXAMPLES.iter().fold(command, |command, (name, lines)| {
        let text = format!("Examples:\n  {}", lines.join("\n  "));
        command.mut_subcommand(name, |subcommand| subcommand.after_help(text))
    })
}

#[cfg(test)]
mod tests;
