//! The command line.

use clap::{Parser, Subcommand};

use crate::{fuzz, image, mutants, packages, release, test, tool, vm};

/// Builds, tests and demonstrates sidetrack.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
pub struct Cli {
    #[command(subcommand)]
    /// What to do.
    pub command: Command,
}

/// Its commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Install what the other commands need (each installs what it needs itself)
    Setup,
    /// Build the kernel programs and the sidetrack binary
    Build,
    /// Check formatting, lints, documentation, spelling, shell scripts, dependencies and the order of modules
    Lint,
    /// Build the documentation as a site with search
    Docs,
    /// Write the table of values into the chart's README
    Values,
    /// Run every test, against the real kernel (needs root)
    Test(test::Options),
    /// Make the same connections through sidetrack and through real iptables and compare (needs root)
    #[command(disable_help_flag = true)]
    Compare(tool::Arguments),
    /// Measure what interception costs, against iptables and against no interception (needs root)
    #[command(disable_help_flag = true)]
    Bench(tool::Arguments),
    /// Attack a running agent and webhook, and check that no other pod notices (needs root)
    #[command(disable_help_flag = true)]
    Attacks(tool::Arguments),
    /// Start pods by the hundred and check that no connection bypasses the sidecar (needs root)
    #[command(disable_help_flag = true)]
    Starts(tool::Arguments),
    /// Kill, upgrade, change and restart everything under traffic, and account for every connection
    /// (needs root)
    #[command(disable_help_flag = true)]
    Soak(tool::Arguments),
    /// Try everything on a real Kubernetes cluster for tests: install, traffic, migration, restarts, uninstall
    #[command(disable_help_flag = true)]
    E2e(tool::Arguments),
    /// Build the OCI image and run `sidetrack doctor` from it (needs root)
    Image(image::Options),
    /// Make every file of a release from a clean checkout: archives, packages, image, chart, records (needs root)
    Release(release::Options),
    /// Try the packages of a release: install, run, upgrade, purge, in root file systems of Debian (needs root)
    Packages(packages::Options),
    /// Fuzz the agent's parsers with libFuzzer
    Fuzz(fuzz::Options),
    /// Change the code in small ways and check that unit tests notice (cargo-mutants)
    Mutants(mutants::Options),
    /// Run the tests on Debian's kernels or your own, in QEMU (needs root)
    Vm(vm::Options),
    /// Draw the pictures of terminals in the docs, from real commands (needs root)
    #[command(disable_help_flag = true)]
    Pictures(tool::Arguments),
    /// Show two pods with real sidecars and no iptables (needs root)
    #[command(disable_help_flag = true)]
    Demo(tool::Arguments),
}
