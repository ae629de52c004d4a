//! The emergency switch of the CNI plugin: an annotation of the agent's DaemonSet, which the plugin reads anyway.

/// Lists the nodes whose pods start although their agent does not answer or is not ready, separated by commas; `*` is
/// every node.
pub const OPEN_GATE: &str = "sidetrack.dev/open-gate";

/// Whether a value of [`OPEN_GATE`] names a node. A plugin that does not have its node's name follows `*` alone.
#[must_use]
pub fn opens(value: &str, node: Option<&str>) -> bool {
    let mut nodes = value.split(',').map(str::trim);
    nodes.any(|it| it == "*" || node.is_some_and(|node| node == it))
}

/// Whether a value of [`OPEN_GATE`] names any node.
#[must_use]
pub fn names_any(value: &str) -> bool {
    value.split(',').any(|it| !it.trim().is_empty())
}

#[cfg(test)]
mod tests;
