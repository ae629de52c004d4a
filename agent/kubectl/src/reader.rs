//! Commands of agents without the right to run them in their containers: the API server's proxy passes a question to the
//! agent's port for metrics, with a token of a service account of readers. See [`sidetrack_policy::reader`].

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};
use http_body_util::{BodyExt as _, Limited};
use hyper::{Request, StatusCode};
use k8s_openapi::api::{
    authentication::v1::{TokenRequest, TokenRequestSpec},
    core::v1::ServiceAccount,
};
use kube::{Api, Client, Error, api::PostParams, client::Body};
use parking_lot::Mutex;
use serde::Deserialize;
use sidetrack_policy::{
    reader::{self, Answer, Scope},
    text::printable,
};

use crate::{
    agents::Agent,
    denied::plain,
    exec::{Finished, MAX_ERROR_BYTES, MAX_OUTPUT_BYTES, within},
};

/// How long an agent may take at most. Its connections end soon after.
const WAIT_TIMEOUT: Duration = Duration::from_secs(3);
/// Until an agent that answers others is asked again.
const BUSY_INTERVAL: Duration = Duration::from_millis(200);
/// For how long a token is asked. The API server makes none for less.
const TOKEN_SECONDS: i64 = 600;
/// For how long it is used.
const TOKEN_TTL: Duration = Duration::from_secs(300);
/// For how long an agent that could not be asked is not asked again.
const FAILED_TTL: Duration = Duration::from_secs(30);
/// The longest answer, twice the longest output of a command: it is escaped.
const MAX_ANSWER_BYTES: usize = 16 << 20;

/// What is known of the user's rights, and tokens.
#[derive(Clone)]
pub struct Tokens {
    /// One that does not ask again by itself: what is wrong is known at once.
    client: Client,
    known: Arc<Mutex<Known>>,
}

#[derive(Default)]
struct Known {
    /// Namespaces of whose service account the user gets no token.
    denied: BTreeSet<String>,
    /// Whether an agent has answered by exec what it did not answer a reader.
    is_exec_better: bool,
    /// Nodes whose agents could not be asked, when, and why.
    failed: BTreeMap<String, (Instant, String)>,
    /// By namespace and node.
    tokens: BTreeMap<(String, String), (String, Instant)>,
}

/// The user is no reader, or readers do not get such answers.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct NoReader(String);

impl Tokens {
    /// For the user of a client.
    pub fn new(client: Client) -> Self {
        Self {
            client,
            known: Arc::default(),
        }
    }

    /// An agent has answered by exec what it did not answer a reader: nothing is waited for in vain from now on.
    pub fn prefer_exec(&self) {
        self.known.lock().is_exec_better = true;
    }

    /// Asks an agent by a command.
    ///
    /// # Errors
    /// Why it is to be run in the agent's container.
    pub async fn ask(&self, timeout: Duration, agent: &Agent, words: &[&str]) -> Result<Finished> {
        let no_port = || NoReader("the agent's pod has no port `metrics`".to_owned());
        let port = agent.port.ok_or_else(no_port)?;
        if let Some((when, why)) = self.known.lock().failed.get(&agent.node)
            && when.elapsed() < FAILED_TTL
        {
            bail!("{why}");
        }
        if self.known.lock().is_exec_better {
            return Err(NoReader("agents do not answer readers".to_owned()).into());
        }
        let words: Vec<String> = words.iter().map(|&word| word.to_owned()).collect();
        let whole = (agent.namespace.as_str(), Scope::Node);
        let part = namespace_of(&words);
        let part = part.map(|own| (own, Scope::Namespace(own.to_owned())));
        let mut why = None;
        for (namespace, scope) in [Some(whole), part].into_iter().flatten() {
            if let Err(refusal) = reader::check(&words, &scope) {
                why.get_or_insert(refusal);
                continue;
            }
            let asked = async {
                let Some(token) = self.token(namespace, &agent.node).await? else {
                    return Ok(None);
                };
                read(&self.client, agent, port, &token, &words)
                    .await
                    .map(Some)
            };
            match within(timeout.min(WAIT_TIMEOUT), asked).await {
                Ok(None) => {}
                Ok(Some(finished)) => return Ok(finished),
                Err(error) => {
                    let failed = (Instant::now(), format!("{error:#}"));
                    self.known.lock().failed.insert(agent.node.clone(), failed);
                    return Err(error);
                }
            }
        }
        let account = reader::SERVICE_ACCOUNT;
        let none = || format!("there is no service account {account} of which you may make tokens");
        Err(NoReader(why.unwrap_or_else(none)).into())
    }

    /// A token for one agent, made or kept; none if the user may not have it, or there is no such service account.
    async fn token(&self, namespace: &str, node: &str) -> Result<Option<String>> {
        let key = (namespace.to_owned(), node.to_owned());
        {
            let known = self.known.lock();
            if known.denied.contains(namespace) {
                return Ok(None);
            }
            let kept = known.tokens.get(&key);
            if let Some((token, made)) = kept
                && made.elapsed() < TOKEN_TTL
            {
                return Ok(Some(token.clone()));
            }
        }
        let request = TokenRequest {
            spec: Some(TokenRequestSpec {
                audiences: Some(vec![reader::audience(node)]),
                expiration_seconds: Some(TOKEN_SECONDS),
                bound_object_ref: None,
            }),
            ..TokenRequest::default()
        };
        let api: Api<ServiceAccount> = Api::namespaced(self.client.clone(), namespace);
        let name = reader::SERVICE_ACCOUNT;
        let how = PostParams::default();
        match api.create_token_request(name, &how, &request).await {
            Ok(made) => {
                let token = made.status.and_then(|status| status.token);
                let token = token.context("the API server made no token")?;
                let mut known = self.known.lock();
                known.tokens.insert(key, (token.clone(), Instant::now()));
                Ok(Some(token))
            }
            Err(Error::Api(status)) if matches!(status.code, 401 | 403 | 404) => {
                self.known.lock().denied.insert(namespace.to_owned());
                Ok(None)
            }
            Err(error) => Err(plain(error)),
        }
    }
}

async fn read(
    client: &Client,
    agent: &Agent,
    port: u16,
    token: &str,
    words: &[String],
) -> Result<Finished> {
    let Agent { namespace, pod, .. } = agent;
    let words = serde_json::to_string(words)?;
    let query = serde_urlencoded::to_string([("words", words)])?;
    let path = reader::PATH;
    let path = format!("/api/v1/namespaces/{namespace}/pods/{pod}:{port}/proxy{path}?{query}");
    let (code, body) = loop {
        let request = Request::get(&path).header(reader::TOKEN, token);
        let response = client
            .send(request.body(Body::empty())?)
            .await
            .map_err(plain)?;
        let code = response.status();
        let body = Limited::new(response.into_body(), MAX_ANSWER_BYTES);
        let body = body.collect().await.map_err(anyhow::Error::from_boxed);
        let body = body.context("read the agent's answer")?.to_bytes();
        if code != StatusCode::TOO_MANY_REQUESTS {
            break (code, body);
        }
        tokio::time::sleep(BUSY_INTERVAL).await;
    };
    if !code.is_success() {
        bail!("{}", refusal(code, &body));
    }
    let answer: Answer = serde_json::from_slice(&body).context("its answer is not understood")?;
    let is_long = |text: &str, most| text.len() as u64 > most;
    if is_long(&answer.stdout, MAX_OUTPUT_BYTES) || is_long(&answer.stderr, MAX_ERROR_BYTES) {
        bail!("its answer is longer than {} MiB", MAX_OUTPUT_BYTES >> 20);
    }
    Ok(Finished {
        stdout: answer.stdout.into_bytes(),
        stderr: answer.stderr.into_bytes(),
        code: answer.code,
    })
}

/// What the API server or the agent says instead of an answer.
fn refusal(code: StatusCode, body: &[u8]) -> String {
    /// Of the characters.
    const SHOWN: usize = 300;
    #[derive(Deserialize)]
    struct Status {
        message: String,
    }
    let said = match serde_json::from_slice::<Status>(body) {
        Ok(status) => status.message,
        Err(_) => String::from_utf8_lossy(body).into_owned(),
    };
    let said: String = said.trim().chars().take(SHOWN).collect();
    format!("{code}: {}", printable(&said))
}

/// The namespace of the pods that a command is about, if its words begin with it.
fn namespace_of(words: &[String]) -> Option<&str> {
    match words {
        [_, flag, name, ..] if flag == "-n" => Some(name),
        [_, pod, ..] => pod.split_once('/').map(|(own, _)| own),
        _ => None,
    }
}
