//! Commands of agents without the right to run them in their containers: the API server's proxy passes a question to the
//! agent's port for metrics, with a token of a service account of readers. See [`sidetrack_policy::reader`].

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};
use http_body_util::{BodyExt as _, Limited};
use hyper::Request;
use k8s_openapi::api::{
    authentication::v1::{TokenRequest, TokenRequestSpec},
    core::v1::ServiceAccount,
};
use kube::{Api, Client, Error, api::PostParams, client::Body};
use parking_lot::Mutex;
use sidetrack_policy::{
    reader::{self, Answer, Scope},
    text::printable,
};

use crate::{
    agents::Agent,
    denied::plain,
    exec::{Finished, within},
};

/// How long an agent may take. Then the command is run in its container.
const WAIT_TIMEOUT: Duration = Duration::from_secs(3);
/// For how long a token is asked. The API server makes none for less.
const TOKEN_SECONDS: i64 = 600;
/// For how long it is used.
const TOKEN_TTL: Duration = Duration::from_secs(300);
/// The longest answer.
const MAX_ANSWER_BYTES: usize = 16 << 20;

/// What is known of the user's rights, and tokens.
#[derive(Clone, Debug, Default)]
pub struct Tokens(Arc<Mutex<Known>>);

#[derive(Debug, Default)]
struct Known {
    /// Namespaces of whose service account the user gets no token.
    denied: BTreeSet<String>,
    /// By namespace and node.
    tokens: BTreeMap<(String, String), (String, Instant)>,
}

/// Why a command is to be run in the agent's container instead.
#[derive(Debug)]
pub enum Unread {
    /// The user is no reader, or readers do not get such answers.
    NoReader,
    /// It was tried.
    Failed(anyhow::Error),
}

impl Tokens {
    /// Asks an agent by a command.
    pub async fn ask(
        &self,
        client: &Client,
        agent: &Agent,
        words: &[&str],
    ) -> Result<Finished, Unread> {
        let Some(port) = agent.port else {
            return Err(Unread::NoReader);
        };
        let owned: Vec<String> = words.iter().map(|&word| word.to_owned()).collect();
        let whole = (agent.namespace.as_str(), Scope::Node);
        let part = reader::namespace_of(&owned);
        let part = part.map(|own| (own, Scope::Namespace(own.to_owned())));
        for (namespace, scope) in [Some(whole), part].into_iter().flatten() {
            if reader::check(&owned, &scope).is_err() {
                continue;
            }
            let asked = async {
                let Some(token) = self.token(client, namespace, &agent.node).await? else {
                    return Ok(None);
                };
                read(client, agent, port, &token, &owned).await.map(Some)
            };
            match within(WAIT_TIMEOUT, asked).await {
                Ok(None) => {}
                Ok(Some(finished)) => return Ok(finished),
                Err(error) => return Err(Unread::Failed(error)),
            }
        }
        Err(Unread::NoReader)
    }

    /// A token for one agent; none if the user may not have it, or there is no such service account.
    async fn token(&self, client: &Client, namespace: &str, node: &str) -> Result<Option<String>> {
        let key = (namespace.to_owned(), node.to_owned());
        {
            let known = self.0.lock();
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
        let api: Api<ServiceAccount> = Api::namespaced(client.clone(), namespace);
        let name = reader::SERVICE_ACCOUNT;
        let how = PostParams::default();
        match api.create_token_request(name, &how, &request).await {
            Ok(made) => {
                let token = made.status.and_then(|status| status.token);
                let token = token.context("the API server made no token")?;
                let mut known = self.0.lock();
                known.tokens.insert(key, (token.clone(), Instant::now()));
                Ok(Some(token))
            }
            Err(Error::Api(status)) if matches!(status.code, 401 | 403 | 404) => {
                self.0.lock().denied.insert(namespace.to_owned());
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
    let request = Request::get(path)
        .header(reader::TOKEN, token)
        .body(Body::empty())?;
    let response = client.send(request).await.map_err(plain)?;
    let code = response.status();
    let body = Limited::new(response.into_body(), MAX_ANSWER_BYTES)
        .collect()
        .await;
    let body = body
        .map_err(anyhow::Error::from_boxed)
        .context("read the agent's answer")?;
    let body = body.to_bytes();
    if !code.is_success() {
        let said = String::from_utf8_lossy(&body);
        let said: String = said.chars().take(200).collect();
        bail!("{code}: {}", printable(said.trim()));
    }
    let answer: Answer = serde_json::from_slice(&body).context("its answer is not understood")?;
    Ok(Finished {
        stdout: answer.stdout.into_bytes(),
        stderr: answer.stderr.into_bytes(),
        code: answer.code,
    })
}
