//! An authority, its certificates, and the directory that a Secret is mounted as.

use std::{
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
};

use anyhow::Result;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use tempfile::TempDir;

/// The name the API server would call the webhook by.
pub const NAME: &str = "sidetrack-webhook.sidetrack-system.svc";

/// Who signs.
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    /// Its own certificate.
    pub der: Vec<u8>,
}

/// A certificate and its key.
pub struct Pair {
    /// The certificate in PEM.
    pub cert: String,
    /// The key in PEM.
    pub key: String,
    /// The certificate as it is served.
    pub der: Vec<u8>,
}

impl Authority {
    /// A new one.
    pub fn new() -> Result<Self> {
        let mut params = CertificateParams::new([])?;
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate()?;
        let der = params.self_signed(&key)?.der().to_vec();
        let issuer = Issuer::new(params, key);
        Ok(Self { issuer, der })
    }

    /// A new certificate for the webhook.
    pub fn pair(&self) -> Result<Pair> {
        self.pair_until(4096)
    }

    /// One that is valid until the end of a year.
    pub fn pair_until(&self, year: i32) -> Result<Pair> {
        let key = KeyPair::generate()?;
        let mut params = CertificateParams::new([NAME.to_owned()])?;
        params.not_after = rcgen::date_time_ymd(year, 12, 31);
        let cert = params.signed_by(&key, &self.issuer)?;
        Ok(Pair {
            cert: cert.pem(),
            key: key.serialize_pem(),
            der: cert.der().to_vec(),
        })
    }
}

/// A mounted Secret: links to links, as kubelet makes them.
pub struct Mount {
    dir: TempDir,
    versions: u32,
}

impl Mount {
    /// With a first pair.
    pub fn new(pair: &Pair) -> Result<Self> {
        let mut mount = Self {
            dir: TempDir::new()?,
            versions: 0,
        };
        mount.swap(pair)?;
        symlink("..data/tls.crt", mount.cert())?;
        symlink("..data/tls.key", mount.key())?;
        Ok(mount)
    }

    /// The directory.
    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    /// The certificate's file.
    pub fn cert(&self) -> PathBuf {
        self.path().join("tls.crt")
    }

    /// The key's file.
    pub fn key(&self) -> PathBuf {
        self.path().join("tls.key")
    }

    /// Both at once, as kubelet does it.
    pub fn swap(&mut self, pair: &Pair) -> Result<()> {
        let path = self.path();
        let before = format!("..version-{}", self.versions);
        let version = format!("..version-{}", self.versions + 1);
        fs::create_dir(path.join(&version))?;
        fs::write(path.join(&version).join("tls.crt"), &pair.cert)?;
        fs::write(path.join(&version).join("tls.key"), &pair.key)?;
        symlink(&version, path.join("..data_tmp"))?;
        fs::rename(path.join("..data_tmp"), path.join("..data"))?;
        let _ = fs::remove_dir_all(path.join(before));
        self.versions += 1;
        Ok(())
    }

    /// One after the other, in place: half a file may be seen, and a pair that does not match.
    pub async fn overwrite(&self, pair: &Pair) -> Result<()> {
        let pause = || tokio::time::sleep(std::time::Duration::from_millis(30));
        let (first, _) = pair.cert.split_at(pair.cert.len() / 2);
        fs::write(self.cert(), first)?;
        pause().await;
        fs::write(self.cert(), &pair.cert)?;
        pause().await;
        fs::write(self.key(), &pair.key)?;
        Ok(())
    }
}
