//! What is different between two policies, for people.

use std::collections::HashSet;

use serde_json::Value;

use super::Policy;
use crate::text::printable;

/// How many entries of a list are named.
const NAMED: usize = 5;

impl Policy {
    /// What changes when another policy takes the place of this one, a phrase for each field.
    #[must_use]
    pub fn changes_to(&self, next: &Self) -> Vec<String> {
        let fields = |policy: &Self| match serde_json::to_value(policy) {
            Ok(Value::Object(fields)) => fields,
            _ => serde_json::Map::new(),
        };
        let (before, after) = (fields(self), fields(next));
        let changed = after.iter().filter_map(|(field, after)| {
            let before = before.get(field).unwrap_or(&Value::Null);
            let name = field.replace('_', " ");
            (before != after).then(|| format!("{name}: {}", change(before, after)))
        });
        changed.collect()
    }
}

fn change(before: &Value, after: &Value) -> String {
    let lists = before.as_array().zip(after.as_array());
    let Some((before, after)) = lists else {
        return format!("{} -> {}", value(before), value(after));
    };
    let missing = |from: &[Value], others: &[Value]| -> Vec<String> {
        let others: HashSet<String> = others.iter().map(value).collect();
        let of_from = from.iter().map(value);
        of_from.filter(|it| !others.contains(it)).collect()
    };
    let parts = [
        ("added", missing(after, before)),
        ("removed", missing(before, after)),
    ];
    let parts = parts.into_iter().filter(|(_, values)| !values.is_empty());
    let parts: Vec<String> = parts
        .map(|(word, values)| format!("{word} {}", listed(values)))
        .collect();
    match parts.is_empty() {
        true => "another order".to_owned(),
        false => parts.join(", "),
    }
}

fn listed(mut values: Vec<String>) -> String {
    let more = values.len().saturating_sub(NAMED);
    values.truncate(NAMED);
    let named = values.join(", ");
    match more {
        0 => named,
        more => format!("{named} and {more} more"),
    }
}

fn value(value: &Value) -> String {
    match value {
        Value::Null => "all".to_owned(),
        Value::String(text) => printable(text),
        other => printable(&other.to_string()),
    }
}

#[cfg(test)]
mod tests;
