//! What the agent reports to the service manager that started it, as sd_notify(3) has it: that the agent is ready, that
//! it ends, and as a watchdog's sign of life that the reconciler makes progress. Without `NOTIFY_SOCKET` nothing is
//! sent.

use std::{sync::Arc, time::Duration};

use sd_notify::NotifyState;
use tokio::time::{MissedTickBehavior, interval};

use super::metrics_http::is_live;
use crate::observe::status::Status;

/// How often the agent's state is looked at.
const POLL_INTERVAL: Duration = Duration::from_millis(200);

/// Reports until the end. An agent whose reconciler hangs gives no sign of life, so that it is started again.
pub async fn report(status: Arc<Status>) {
    if std::env::var_os("NOTIFY_SOCKET").is_none() {
        return;
    }
    let watchdog = sd_notify::watchdog_enabled();
    let mut ready = false;
    let mut since_sign = Duration::ZERO;
    let mut turns = interval(POLL_INTERVAL);
    turns.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        turns.tick().await;
        if !ready && status.is_ready() {
            ready = true;
            send(&[NotifyState::Ready]);
        }
        since_sign += POLL_INTERVAL;
        // As sd_watchdog_enabled(3) advises, twice in the time that is allowed.
        if watchdog.is_some_and(|allowed| since_sign >= allowed / 2) && is_live(&status) {
            since_sign = Duration::ZERO;
            send(&[NotifyState::Watchdog]);
        }
    }
}

/// Reports that the agent ends.
pub fn report_end() {
    send(&[NotifyState::Stopping]);
}

fn send(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::warn!("notify the service manager: {error}");
    }
}
