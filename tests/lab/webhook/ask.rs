//! A webhook under attack, and what the API server notices of it.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use tokio::time::{sleep, timeout};

use super::{
    certificates::{Authority, Mount},
    client::{Client, Review},
    server::Server,
};
use crate::attack::Attack;

/// How long an attack is watched.
const WATCHED: Duration = Duration::from_secs(3);
/// Before the first request: an attack needs a moment to begin. A thousand handshakes at once keep a processor
/// busy for a while, on both sides.
const BEGIN: Duration = Duration::from_secs(1);
/// Between two requests.
const PAUSE: Duration = Duration::from_millis(20);
/// The API server gives up.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
/// An answer that took longer is late. One of hundred proves nothing: the kernel sends a lost SYN again after a
/// second, and a machine that runs tests may stand still for one.
const LATE: Duration = Duration::from_secs(1);

/// What the API server saw of a webhook under attack.
#[derive(Clone, Copy, Debug)]
pub struct Attacked {
    /// How often the attack reached the webhook.
    pub effects: usize,
    /// Requests that were answered.
    pub answers: usize,
    /// Of those, how many took more than a second.
    pub late: usize,
    /// The longest wait for an answer.
    pub longest: Duration,
    /// Resident memory before, in KiB.
    pub at_rest: u64,
    /// The most resident memory, in KiB.
    pub most: u64,
}

/// Starts a webhook, attacks it, and asks it as the API server does.
pub async fn attacked(attack: impl FnOnce(&Client) -> Attack) -> Result<Attacked> {
    let authority = Authority::new()?;
    let mount = Mount::new(&authority.pair()?)?;
    let server = Server::start(&mount, &[]).await?;
    let client = Client::new(&authority, server.address)?;
    client.connect().await?.admit(&Review::new(0)?).await?;
    let [at_rest, _] = server.memory()?;
    let attack = attack(&client);
    sleep(BEGIN).await;
    let (answers, late, longest) = ask(&client).await?;
    let [_, most] = server.memory()?;
    let effects = attack.effects();
    ensure!(effects > 0, "the attack does not reach the webhook");
    Ok(Attacked {
        effects,
        answers,
        late,
        longest,
        at_rest,
        most,
    })
}

/// Asks for a while, on a connection that stays and on new ones; how often, how often it was late, and the
/// longest wait.
async fn ask(client: &Client) -> Result<(usize, usize, Duration)> {
    let start = Instant::now();
    let mut longest = Duration::ZERO;
    let mut kept = client.connect().await?;
    let (mut answers, mut late) = (0, 0);
    while start.elapsed() < WATCHED {
        let review = Review::new(answers)?;
        let asked = Instant::now();
        let admitted = async {
            match answers % 4 {
                0 => client.connect().await?.admit(&review).await,
                _ => kept.admit(&review).await,
            }
        };
        timeout(ANSWER_TIMEOUT, admitted).await??;
        let waited = asked.elapsed();
        longest = longest.max(waited);
        late += usize::from(waited > LATE);
        answers += 1;
        sleep(PAUSE).await;
    }
    Ok((answers, late, longest))
}
