//! `sidetrack version`: what this binary was built from, for bug reports and for comparing the binaries of nodes.

use std::{env::consts::ARCH, process::ExitCode};

use anyhow::Result;
use clap::Args;
use ring::digest::{SHA256, digest};
use serde::Serialize;
use sidetrack_base::VERSION;
use sidetrack_common::LAYOUT_VERSION;
use sidetrack_datapath::kernel::objects::{ACCELERATE, CORE, DNS, FORWARD};

use super::{Format, output};

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  sidetrack version
  sidetrack version -o json")]
pub(super) struct Options {
    /// Form of the output
    #[arg(short, long, value_name = "FORMAT", value_enum, default_value_t)]
    output: Format,
}

/// What is printed. The fields are part of the interface: docs/upgrades.md.
#[derive(Debug, Serialize)]
struct Build {
    version: &'static str,
    /// The commit, with `-dirty` for a checkout with changes; none if the build did not get it.
    commit: Option<&'static str>,
    target: String,
    /// Of the maps that are pinned.
    layout: u32,
    kernel_objects: Vec<KernelObject>,
}

/// An object with kernel programs. Its bytes are the same in the binaries of all architectures.
#[derive(Debug, Serialize)]
struct KernelObject {
    name: &'static str,
    bytes: usize,
    sha256: String,
}

pub(super) fn run(options: &Options) -> Result<ExitCode> {
    let build = Build::own();
    if !output::print_value(options.output, &build)? {
        print(&build)?;
    }
    Ok(ExitCode::SUCCESS)
}

impl Build {
    fn own() -> Self {
        let libc = if cfg!(target_env = "musl") {
            "musl"
        } else {
            "gnu"
        };
        let objects = [
            ("core", CORE),
            ("forward", FORWARD),
            ("accelerate", ACCELERATE),
            ("dns", DNS),
        ];
        Self {
            version: VERSION,
            commit: option_env!("SIDETRACK_COMMIT"),
            target: format!("{ARCH}-unknown-linux-{libc}"),
            layout: LAYOUT_VERSION,
            kernel_objects: objects.map(KernelObject::new).into(),
        }
    }
}

impl KernelObject {
    fn new((name, content): (&'static str, &[u8])) -> Self {
        let sum = digest(&SHA256, content);
        Self {
            name,
            bytes: content.len(),
            sha256: sum.as_ref().iter().map(|it| format!("{it:02x}")).collect(),
        }
    }
}

fn print(build: &Build) -> Result<()> {
    output::print(format!(
        "version  {}\ncommit   {}\ntarget   {}\nlayout   {}\n",
        build.version,
        build.commit.unwrap_or("unknown"),
        build.target,
        build.layout
    ))?;
    let mut table = output::table(["KERNEL OBJECT", "BYTES", "SHA256"]);
    for object in &build.kernel_objects {
        table.add_row([object.name, &object.bytes.to_string(), &object.sha256]);
    }
    output::print_table(&table)
}
