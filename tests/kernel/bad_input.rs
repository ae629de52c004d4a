//! Bad input: one clear error that names the object and the cure; everything else continues.

mod hanging;
mod manifests;
mod previous_policy;
mod start;

use anyhow::Result;
use lab::agent::Places;

/// Waits until status (for a file) or the pod's row (for a pod) says all the words.
fn reported(places: &Places, state: &str, words: &[&str]) -> Result<()> {
    let says = |text: &str| words.iter().all(|word| text.contains(word));
    if state.is_empty() {
        for _ in 0..100 {
            let problems = places.problems()?;
            if says(&problems) {
                return Ok(());
            }
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        anyhow::bail!("status does not say {words:?}; log:\n{}", places.log());
    }
    places
        .wait_pod("test/bad", |pod| {
            pod.is_some_and(|pod| pod["state"] == state && pod["reason"].as_str().is_some_and(says))
        })
        .map(drop)
}
