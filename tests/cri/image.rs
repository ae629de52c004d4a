//! The image of every container here: the actor, the binary under test, and the libraries both are
//! linked with. No registry is asked for it.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result};
use lab::{actor, agent, command::run_words};
use serde_json::json;

/// What a sandbox's own container runs.
pub const PAUSE: &str = "sidetrack.test/pause:1";
/// What stands in for a mesh's sidecar. The agent takes the rules of that version.
pub const PROXY: &str = "docker.io/istio/proxyv2:1.28.0";
/// An application.
pub const APP: &str = "sidetrack.test/app:1";
/// One image has all names.
pub const NAMES: [&str; 3] = [PAUSE, PROXY, APP];

/// Builds it in a directory; the archive.
pub fn build(dir: &Path) -> Result<PathBuf> {
    let files = dir.join("files");
    for (program, name) in [
        (actor::binary()?, "sidetrack-actor"),
        (agent::binary()?, "sidetrack"),
    ] {
        install(&program, &files.join(name))?;
        let listing = run_words(&["ldd", &program.to_string_lossy()])?;
        for library in listing.split_whitespace().filter(|it| it.starts_with('/')) {
            let inside = library.trim_start_matches('/');
            install(Path::new(library), &files.join(inside))?;
        }
    }
    let tar = |from: &Path, archive: &Path, what: &[&str]| {
        let (from, archive) = (from.to_string_lossy(), archive.to_string_lossy());
        run_words(&[&["tar", "-C", &from, "-cf", &archive], what].concat())
    };
    // As `docker save` writes it: that needs one digest, OCI's layout six.
    let image = dir.join("image");
    fs::create_dir_all(&image)?;
    let layer = image.join("layer.tar");
    tar(&files, &layer, &["."])?;
    let digest = run_words(&["sha256sum", &layer.to_string_lossy()])?;
    let digest = digest.split_whitespace().next().context("a digest")?;
    let architecture = match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    };
    let config = json!({
        "architecture": architecture, "os": "linux",
        // Without anything to do an actor waits forever.
        "config": {"Cmd": ["/sidetrack-actor", "--here"]},
        "rootfs": {"type": "layers", "diff_ids": [format!("sha256:{digest}")]},
    });
    fs::write(image.join("config.json"), config.to_string())?;
    let manifest = json!([{"Config": "config.json", "RepoTags": NAMES, "Layers": ["layer.tar"]}]);
    fs::write(image.join("manifest.json"), manifest.to_string())?;
    let archive = dir.join("image.tar");
    tar(
        &image,
        &archive,
        &["manifest.json", "config.json", "layer.tar"],
    )?;
    Ok(archive)
}

fn install(from: &Path, to: &Path) -> Result<()> {
    let parent = to.parent().context("a path in the image")?;
    fs::create_dir_all(parent)?;
    fs::copy(from, to)
        .map(drop)
        .with_context(|| format!("copy {}", from.display()))
}
