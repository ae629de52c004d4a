//! The attacks on the webhook.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use lab::{
    attack::{ATTACKER, Attack, silent},
    product::block_on,
    webhook::{
        attacks,
        certificates::{Authority, Mount},
        client::{Client, Review},
        server::Server,
    },
};
use tokio::time::{sleep, timeout};

use crate::report::{Report, Seen, mebibytes, millis};

/// The longest wait of a legitimate request.
const ANSWERED_WITHIN: Duration = Duration::from_secs(1);
/// `resources.limits.memory` of the webhook.
const MAX_MEMORY: u64 = 64 << 20;
/// For so long a legitimate client asks.
const WATCHED: Duration = Duration::from_secs(3);
/// Before the first request: an attack needs a moment to begin.
const BEGIN: Duration = Duration::from_millis(500);
/// Between two requests.
const PAUSE: Duration = Duration::from_millis(20);

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
    let authority = Authority::new()?;
    let mount = Mount::new(&authority.pair()?)?;
    let server = Server::start(&mount, &[]).await?;
    let client = Client::new(&authority, server.address)?;
    client.connect().await?.admit(&Review::new(0)?).await?;
    let [at_rest, _] = server.memory()?;
    let attack = start(&client);
    sleep(BEGIN).await;
    let (answers, longest) = ask(&client).await?;
    let [_, most] = server.memory()?;
    drop(attack);
    let text = vec![
        format!("{answers} requests answered in {} at most", millis(longest)),
        format!(
            "{} of memory, {} at rest",
            mebibytes(most << 10),
            mebibytes(at_rest << 10)
        ),
    ];
    ensure!(longest < ANSWERED_WITHIN, "{}", text.join(", "));
    ensure!(most << 10 < MAX_MEMORY, "{}", text.join(", "));
    Ok(text)
}

/// Asks as the API server does: on a connection that stays, and on new ones.
async fn ask(client: &Client) -> Result<(usize, Duration)> {
    let start = Instant::now();
    let mut longest = Duration::ZERO;
    let mut kept = client.connect().await?;
    let mut answers = 0;
    while start.elapsed() < WATCHED {
        let review = Review::new(answers)?;
        let asked = Instant::now();
        let admitted = async {
            match answers % 4 {
                0 => client.connect().await?.admit(&review).await,
                _ => kept.admit(&review).await,
            }
        };
        timeout(10 * ANSWERED_WITHIN, admitted).await??;
        longest = longest.max(asked.elapsed());
        answers += 1;
        sleep(PAUSE).await;
    }
    Ok((answers, longest))
}
