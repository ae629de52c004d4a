//! The certificate and its key: two files whose changes are followed.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use anyhow::{Context as _, Result, bail};
use tokio_rustls::rustls::{
    CertificateError, Error, RootCertStore, ServerConfig,
    client::verify_server_cert_signed_by_trust_anchor,
    crypto::ring,
    pki_types::{CertificateDer, PrivateKeyDer, UnixTime, pem::PemObject as _},
    server::ParsedCertificate,
};

use sidetrack_policy::manifest::read_text;

/// Two files are not replaced at the same instant: this long they may not match.
const SETTLE: Duration = Duration::from_millis(200);

/// The two files, and their last content.
#[derive(Debug)]
pub struct Certificates {
    cert: PathBuf,
    key: PathBuf,
    seen: Option<Files>,
    /// The webhook's own certificate, as it is in use.
    used: Option<CertificateDer<'static>>,
}

/// What the files say, or why one cannot be read.
type Files = Result<(String, String), String>;

impl Certificates {
    /// Nothing is read yet.
    #[must_use]
    pub fn new(cert: &Path, key: &Path) -> Self {
        Self {
            cert: cert.to_owned(),
            key: key.to_owned(),
            seen: None,
            used: None,
        }
    }

    /// Reads them for the first time.
    ///
    /// # Errors
    /// If they cannot be used.
    pub fn read(&mut self) -> Result<Arc<ServerConfig>> {
        let files = self.files();
        let config = self.config(&files)?;
        self.seen = Some(files);
        Ok(config)
    }

    /// The new certificate, if it has changed and can be used. Otherwise the current one stays.
    pub async fn changed(&mut self) -> Option<Arc<ServerConfig>> {
        let mut files = self.files();
        if self.seen.as_ref() == Some(&files) {
            return None;
        }
        loop {
            let error = match self.config(&files) {
                Ok(config) => {
                    self.seen = Some(files);
                    tracing::info!(cert = %self.cert.display(), "certificate read again");
                    return Some(config);
                }
                Err(error) => error,
            };
            tokio::time::sleep(SETTLE).await;
            let again = self.files();
            if again == files {
                tracing::error!("{error:#}; the certificate in use stays");
                self.seen = Some(files);
                return None;
            }
            files = again;
        }
    }

    /// Why the API server does not accept the certificate in use: it has expired, or is not valid yet.
    #[must_use]
    pub fn invalid(&self) -> Option<String> {
        let parsed = ParsedCertificate::try_from(self.used.as_ref()?).ok()?;
        // Nothing is trusted: what else is wrong is looked at after the dates.
        let result = verify_server_cert_signed_by_trust_anchor(
            &parsed,
            &RootCertStore::empty(),
            &[],
            UnixTime::now(),
            ring::default_provider()
                .signature_verification_algorithms
                .all,
        );
        use CertificateError::{Expired, ExpiredContext, NotValidYet, NotValidYetContext};
        let Err(Error::InvalidCertificate(error)) = result else {
            return None;
        };
        let why = match error {
            Expired | ExpiredContext { .. } => "has expired",
            NotValidYet | NotValidYetContext { .. } => "is not valid yet",
            _ => return None,
        };
        Some(format!("the certificate in {} {why}", self.cert.display()))
    }

    fn files(&self) -> Files {
        let read = |path: &Path| {
            let text = read_text(path);
            text.map_err(|error| format!("{}: {error:#}", path.display()))
        };
        Ok((read(&self.cert)?, read(&self.key)?))
    }

    fn config(&mut self, files: &Files) -> Result<Arc<ServerConfig>> {
        let (cert, key) = files
            .as_ref()
            .map_err(|error| anyhow::Error::msg(error.clone()))?;
        let (cert_path, key_path) = (self.cert.display(), self.key.display());
        let chain = CertificateDer::pem_slice_iter(cert.as_bytes())
            .collect::<Result<Vec<_>, _>>()
            .with_context(|| format!("{cert_path}: not a certificate in PEM"))?;
        if chain.is_empty() {
            bail!("{cert_path}: there is no certificate in it; write PEM");
        }
        let own = chain.first().cloned();
        let key = PrivateKeyDer::from_pem_slice(key.as_bytes())
            .with_context(|| format!("{key_path}: not a private key in PEM"))?;
        let mut config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .context("set up TLS")?
            .with_no_client_auth()
            // Says so if the key is not the certificate's.
            .with_single_cert(chain, key)
            .with_context(|| format!("use {cert_path} with {key_path}"))?;
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        self.used = own;
        Ok(Arc::new(config))
    }
}
