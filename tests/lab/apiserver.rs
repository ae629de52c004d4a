//! Stands in for the Kubernetes API server: its real protocol over HTTPS with a token. List with
//! pages, watch in chunks with bookmarks, resource versions that expire, Events; and all the ways in
//! which it may go away.

pub mod create;
pub mod exec;
mod http;
mod kinds;
pub mod readers;
mod store;

use std::{
    collections::BTreeSet,
    fs,
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use serde_json::Value;
use tokio::sync::{oneshot, watch};

pub use self::store::{Request, Traffic};
use self::store::{Resource, Store};

/// What a client must show.
const TOKEN: &str = "a-service-account-token";

/// A running one; dropping it ends it.
#[derive(Debug)]
pub struct ApiServer {
    store: Arc<Store>,
    address: SocketAddr,
    kubeconfig: PathBuf,
    /// Whether it answers; connections are cut when that changes.
    up: watch::Sender<Up>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<thread::JoinHandle<()>>,
}

/// Whether and since when connections are served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Up {
    /// Whether anybody is let in.
    serving: bool,
    /// Connections of an earlier time are cut.
    time: u32,
}

/// The objects of an [`ApiServer`].
#[derive(Clone, Debug)]
pub struct Objects {
    store: Arc<Store>,
}

impl Objects {
    /// As [`ApiServer::apply`].
    pub fn apply(&self, object: Value) -> Result<()> {
        self.store.apply(Resource::of(&object)?, object)
    }

    /// As [`ApiServer::edit`].
    pub fn edit(
        &self,
        kind: &str,
        namespace: &str,
        name: &str,
        edit: impl FnOnce(&mut Value),
    ) -> Result<()> {
        let mut object = self.get(kind, namespace, name)?;
        edit(&mut object);
        self.store.apply(Resource::named(kind)?, object)
    }

    /// As [`ApiServer::get`].
    pub fn get(&self, kind: &str, namespace: &str, name: &str) -> Result<Value> {
        self.store
            .get(Resource::named(kind)?, namespace, name)
            .with_context(|| format!("no {kind} {namespace}/{name}"))
    }
}

impl ApiServer {
    /// Starts one; `dir` gets a kubeconfig.
    pub fn start(dir: &Path) -> Result<Self> {
        let key = rcgen::generate_simple_self_signed(vec!["127.0.0.1".to_owned()])?;
        let store = Arc::new(Store::default());
        let (up, watch_up) = watch::channel(Up {
            serving: true,
            time: 0,
        });
        let (stop, stopped) = oneshot::channel();
        let (bound, address) = std::sync::mpsc::channel();
        let certificate = dir.join("ca.pem");
        fs::write(&certificate, key.cert.pem())?;
        let own = Arc::clone(&store);
        let thread = thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .expect("a runtime");
            runtime.block_on(async {
                tokio::select! {
                    ended = http::serve(own, key, watch_up, bound) => {
                        if let Err(error) = ended {
                            eprintln!("API server: {error:#}");
                        }
                    }
                    _ = stopped => {}
                }
            });
        });
        let address = address.recv().context("the API server did not start")?;
        let kubeconfig = dir.join("kubeconfig");
        fs::write(&kubeconfig, kubeconfig_text(address, &certificate))?;
        Ok(Self {
            store,
            address,
            kubeconfig,
            up,
            stop: Some(stop),
            thread: Some(thread),
        })
    }

    /// The kubeconfig file for clients.
    #[must_use]
    pub fn kubeconfig(&self) -> &Path {
        &self.kubeconfig
    }

    /// Where it is.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Its objects, for use in other threads.
    #[must_use]
    pub fn objects(&self) -> Objects {
        Objects {
            store: Arc::clone(&self.store),
        }
    }

    /// Creates or changes a pod or namespace (by `kind`). Watchers receive it.
    pub fn apply(&self, object: Value) -> Result<()> {
        self.objects().apply(object)
    }

    /// Changes one that is there.
    pub fn edit(
        &self,
        kind: &str,
        namespace: &str,
        name: &str,
        edit: impl FnOnce(&mut Value),
    ) -> Result<()> {
        self.objects().edit(kind, namespace, name, edit)
    }

    /// One that is there.
    pub fn get(&self, kind: &str, namespace: &str, name: &str) -> Result<Value> {
        self.objects().get(kind, namespace, name)
    }

    /// Deletes one.
    pub fn delete(&self, kind: &str, namespace: &str, name: &str) -> Result<()> {
        self.store.delete(Resource::named(kind)?, namespace, name)
    }

    /// Sends the last change to the watchers once more.
    pub fn repeat_last(&self) {
        self.store.repeat_last();
    }

    /// Sends a bookmark to the watchers.
    pub fn bookmark(&self) {
        self.store.bookmark();
    }

    /// Forgets history: a watch from an old version gets 410 Gone.
    pub fn compact(&self) {
        self.store.compact();
    }

    /// Lists and events have another text in place of this one, for objects that would need too much memory here.
    pub fn substitute(&self, text: &str, by: String) {
        self.store.set_substitute(text, by);
    }

    /// Every answer takes this long from now on.
    pub fn delay(&self, delay: Duration) {
        self.store.set_delay(delay);
    }

    /// From now on the token is not accepted, or is again.
    pub fn revoke(&self, revoked: bool) {
        self.store.set_revoked(revoked);
    }

    /// A service account's Secret as it is mounted in a container.
    pub fn write_secret(&self, dir: &Path) -> Result<()> {
        fs::create_dir_all(dir)?;
        fs::write(dir.join("token"), TOKEN)?;
        let authority = self.kubeconfig.with_file_name("ca.pem");
        fs::copy(authority, dir.join("ca.crt"))?;
        Ok(())
    }

    /// Cuts all connections; new ones are served.
    pub fn disconnect(&self) {
        self.up.send_modify(|up| up.time += 1);
    }

    /// Goes away: connections are cut and refused.
    pub fn down(&self) {
        self.up.send_modify(|up| {
            up.time += 1;
            up.serving = false;
        });
    }

    /// Comes back at the same place.
    pub fn up(&self) {
        self.up.send_modify(|up| up.serving = true);
    }

    /// From now on objects of a kind may not be listed.
    pub fn forbid(&self, kind: &str) -> Result<()> {
        self.store.forbid(Resource::named(kind)?);
        Ok(())
    }

    /// They may be listed again.
    pub fn permit(&self, kind: &str) -> Result<()> {
        self.store.permit(Resource::named(kind)?);
        Ok(())
    }

    /// The next Events are refused: the server is busy.
    pub fn refuse_events(&self, count: usize) {
        self.store.refuse_events(count);
    }

    /// From now on commands in containers are answered so.
    pub fn on_exec(
        &self,
        handler: impl Fn(&exec::Request) -> exec::Answer + Send + Sync + 'static,
    ) {
        self.store.set_exec_handler(Arc::new(handler));
    }

    /// From now on clients may create objects: the handler completes each, as controllers and kubelet do, or refuses.
    pub fn on_create(
        &self,
        handler: impl Fn(&mut Value) -> std::result::Result<(), create::Refusal> + Send + Sync + 'static,
    ) {
        self.store.set_admission(Arc::new(handler));
    }

    /// From now on clients get tokens of the service accounts of these namespaces only.
    pub fn set_readers(&self, namespaces: &[&str]) {
        let namespaces = namespaces.iter().map(|&name| name.to_owned());
        self.store.readers().namespaces = namespaces.collect();
    }

    /// Each review of a token takes this long from now on.
    pub fn set_review_time(&self, time: Duration) {
        self.store.readers().review_time = time;
    }

    /// How many tokens were reviewed so far.
    #[must_use]
    pub fn reviews(&self) -> usize {
        self.store.readers().reviews
    }

    /// Which protocols `pods/exec` speaks from now on.
    pub fn exec_protocols(&self, protocols: &[&'static str]) {
        self.store.set_exec_protocols(protocols);
    }

    /// When Events were sent, also those that were refused.
    #[must_use]
    pub fn event_attempts(&self) -> Vec<Instant> {
        self.store.event_attempts()
    }

    /// What the status of pods was patched with.
    #[must_use]
    pub fn pod_patches(&self) -> Vec<Value> {
        self.store.pod_patches()
    }

    /// Events that were sent.
    #[must_use]
    pub fn events(&self) -> Vec<Value> {
        self.store.events()
    }

    /// What was asked for so far, without repetition: verb and resource, as RBAC names them.
    #[must_use]
    pub fn requests(&self) -> Vec<Request> {
        self.store.requests()
    }

    /// How much was asked for so far, and how much answered.
    #[must_use]
    pub fn traffic(&self) -> Traffic {
        self.store.traffic()
    }

    /// The user and the groups that each request so far has impersonated, without repetition; empty for none.
    #[must_use]
    pub fn impersonated(&self) -> BTreeSet<Vec<String>> {
        self.store.impersonated()
    }

    /// Starts [`ApiServer::requests`] anew, for the next agent.
    pub fn forget_requests(&self) {
        self.store.forget_requests();
    }
}

impl Drop for ApiServer {
    fn drop(&mut self) {
        if let Some(stop) = self.stop.take() {
            let _ = stop.send(());
        }
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn kubeconfig_text(address: SocketAddr, certificate: &Path) -> String {
    format!(
        "apiVersion: v1
kind: Config
clusters:
- name: test
  cluster: {{server: \"https://{address}\", certificate-authority: {}}}
users:
- name: agent
  user: {{token: {TOKEN}}}
contexts:
- name: test
  context: {{cluster: test, user: agent}}
current-context: test
",
        certificate.display()
    )
}
