//! The attacks on the webhook.

use std::time::Duration;

use anyhow::{Result, ensure};
use lab::{
    attack::{ATTACKER, Attack, silent},
    product::block_on,
    webhook::{ask::attacked, attacks, client::Client},
};

use crate::report::{Report, Seen, mebibytes, millis};

/// The longest wait of a legitimate request.
const ANSWERED_WITHIN: Duration = Duration::from_secs(1);
/// `resources.limits.memory` of the webhook.
const MAX_MEMORY: u64 = 64 << 20;

/// An attack from another address than the API server's.
struct OnWebhook {
    name: &'static str,
    start: fn(&Client) -> Attack,
}

const CONNECTIONS: &[OnWebhook] = &[
    OnWebhook {
        name: "webhook: 600 silent connections",
        start: |client| silent(client.address, Some(ATTACKER), 600),
    },
    OnWebhook {
        name: "webhook: 600 idle TLS connections",
        start: |client| attacks::idle_tls(client.at(ATTACKER), 600),
    },
    OnWebhook {
        name: "webhook: 490 unfinished heads of 390 KB",
        start: |client| attacks::unfinished_heads(client.at(ATTACKER), 490, 390_000),
    },
    OnWebhook {
        name: "webhook: 50 unfinished bodies of 3 MiB",
        start: |client| attacks::unfinished_bodies(client.at(ATTACKER), 50, 3 << 20),
    },
];
/// What the requests of [`attacks::expensive_bodies`] are called here.
const REQUESTS: &str = "webhook: 16 clients that send";

/// The names, in order. Each expensive request is an attack of its own.
pub fn names() -> impl Iterator<Item = &'static str> {
    CONNECTIONS.iter().map(|it| it.name).chain([REQUESTS])
}

/// Runs those that are wanted, each on a webhook of its own.
pub fn run(is_wanted: &impl Fn(&str) -> bool, report: &mut Report) -> Result<()> {
    for it in CONNECTIONS.iter().filter(|it| is_wanted(it.name)) {
        report.add(it.name, block_on(one(it.start))?);
    }
    if is_wanted(REQUESTS) {
        for (name, body) in attacks::expensive_bodies() {
            let name = format!("{REQUESTS} {name} ({} KB)", body.len() / 1000);
            let start = |client: &Client| attacks::requests(client.at(ATTACKER), 16, body);
            report.add(&name, block_on(one(start))?);
        }
    }
    Ok(())
}

async fn one(start: impl FnOnce(&Client) -> Attack) -> Result<Seen> {
    let seen = attacked(start).await?;
    let text = vec![
        format!(
            "{} requests answered in {} at most",
            seen.answers,
            millis(seen.longest)
        ),
        format!(
            "{} of memory, {} at rest",
            mebibytes(seen.most << 10),
            mebibytes(seen.at_rest << 10)
        ),
    ];
    ensure!(seen.longest < ANSWERED_WITHIN, "{}", text.join(", "));
    ensure!(seen.most << 10 < MAX_MEMORY, "{}", text.join(", "));
    Ok(text)
}
