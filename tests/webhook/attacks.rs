//! Hostile clients: meanwhile the API server is answered, nine times of ten within a second, and the webhook
//! has no more than half of the memory that the chart gives it.

use anyhow::{Context as _, Result, ensure};
use lab::{
    attack::{ATTACKER, Attack, silent},
    webhook::{ask, attacks, client::Client},
};

/// The most memory, in KiB.
const MAX_MEMORY: u64 = 128 << 10;

/// Starts a webhook, attacks it, and asks it as the API server does.
async fn attacked(name: &str, attack: impl FnOnce(&Client) -> Attack) -> Result<()> {
    let seen = ask::attacked(attack).await.context(name.to_owned())?;
    println!("{name}: {seen:?}");
    ensure!(10 * seen.late <= seen.answers, "{name}: {seen:?}");
    ensure!(seen.most < MAX_MEMORY, "{name}: {seen:?}");
    Ok(())
}

#[tokio::test]
async fn connections_without_a_request() -> Result<()> {
    let from = |client: &Client| client.at(ATTACKER);
    attacked("600 silent connections", |it| {
        silent(it.address, Some(ATTACKER), 600)
    })
    .await?;
    attacked("600 idle TLS connections", |it| {
        attacks::idle_tls(from(it), 600)
    })
    .await?;
    attacked("490 unfinished heads of 390 KB", |it| {
        attacks::unfinished_heads(from(it), 490, 390_000)
    })
    .await?;
    attacked("490 unfinished heads of 7.5 KB", |it| {
        attacks::unfinished_heads(from(it), 490, 7_500)
    })
    .await
}

/// From the API server's own address, as through a node or a konnectivity agent. It may wait half a second for a
/// place.
#[tokio::test]
async fn connections_from_the_same_address() -> Result<()> {
    attacked("512 idle TLS connections of its own address", |it| {
        attacks::idle_tls(it.clone(), 512)
    })
    .await
}

#[tokio::test]
async fn bodies_and_answers_that_do_not_end() -> Result<()> {
    let from = |client: &Client| client.at(ATTACKER);
    for (connections, bytes) in [(490, 127 << 10), (50, 3 << 20)] {
        let name = format!("{connections} unfinished bodies of {bytes} bytes");
        attacked(&name, |it| {
            attacks::unfinished_bodies(from(it), connections, bytes)
        })
        .await?;
    }
    let (_, body) = attacks::expensive_bodies().swap_remove(6);
    attacked("490 unread answers", |it| {
        attacks::unread_answers(from(it), 490, body)
    })
    .await
}

#[tokio::test]
async fn expensive_requests() -> Result<()> {
    for (name, body) in attacks::expensive_bodies() {
        let name = format!("{name} ({} KB)", body.len() / 1000);
        attacked(&name, |it| attacks::requests(it.at(ATTACKER), 16, body)).await?;
    }
    Ok(())
}
