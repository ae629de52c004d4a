//! The kernel tests on other kernels, booted in QEMU: Debian's, or an image.
//!
//! What is expected of a kernel is what `sidetrack doctor` reports there. Versions are not compared.

mod archive;
mod guest;
mod machine;
mod session;
mod table;

use std::{
    fs,
    path::{Path, PathBuf},
    process::ExitCode,
    sync::Mutex,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};
use clap::{Args, ValueEnum};

use self::{
    archive::{Archive, Kernel, Unpacked},
    guest::Guest,
    machine::Machine,
    session::Session,
};
use crate::{
    arch::Arch,
    build::{self, Agent},
    cross::Userland,
    run::{require_root, root},
    setup::{self, Needs},
};

/// Debian's oldest kernel (refused), its long-term kernels, and the newest.
const KERNELS: [&str; 4] = ["5.10", "6.1", "6.12", "newest"];

/// Those on arm64: what is refused does not depend on the processor.
const KERNELS_ARM64: [&str; 3] = ["6.1", "6.12", "newest"];

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  cargo xtask vm --kernel 6.12 --filter inbound:: --filter outbound::
  cargo xtask vm --image linux/arch/x86/boot/bzImage
  cargo xtask vm --image /boot/vmlinuz-6.8.0-31 --modules /lib/modules/6.8.0-31
  cargo xtask vm --kernel 6.1 --append lockdown=confidentiality --filter doctor::")]
pub struct Options {
    /// The guests' processor
    #[arg(long, value_enum, default_value_t = Arch::native())]
    arch: Arch,
    /// A series such as 6.1, or newest; repeatable [default: 5.10, 6.1, 6.12 and newest; on arm64 without 5.10]
    #[arg(long = "kernel", value_name = "SERIES")]
    kernels: Vec<String>,
    /// A kernel image of your own instead
    #[arg(long, value_name = "FILE", conflicts_with_all = ["kernels", "list"])]
    image: Option<PathBuf>,
    /// The image's modules: its lib/modules/RELEASE. Without them, everything must be built in
    #[arg(long, value_name = "DIR", requires = "image")]
    modules: Option<PathBuf>,
    /// Parameters for the guests' kernels, such as lockdown=integrity
    #[arg(
        long,
        value_name = "TEXT",
        default_value = "",
        hide_default_value = true
    )]
    append: String,
    /// Run only tests whose name contains this; repeatable
    #[arg(long = "filter", value_name = "TEXT")]
    filters: Vec<String>,
    /// How many guests run at once; each takes one processor and up to 3 GB
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u8).range(1..))]
    jobs: u8,
    /// List the available kernels and exit
    #[arg(long)]
    list: bool,
    /// Format of the result
    #[arg(short, long, value_enum, default_value_t)]
    output: Format,
}

#[derive(Clone, Copy, Debug, Default, ValueEnum)]
enum Format {
    #[default]
    Table,
    Json,
}

/// A requested kernel and its result.
#[derive(Debug, Default)]
struct Row {
    /// The series, or the image's path.
    requested: String,
    /// None of an image.
    kernel: Option<Kernel>,
    session: Session,
    problems: Vec<String>,
    /// Why it could not be downloaded. That is the archive's problem and no failure.
    unavailable: Option<String>,
    took: Duration,
}

/// Runs the tests on each kernel.
pub fn run(options: &Options) -> Result<ExitCode> {
    require_root("vm")?;
    let arch = options.arch;
    setup::for_vm(arch)?;
    let dir = root().join(if arch == Arch::native() {
        "target/vm".to_owned()
    } else {
        format!("target/vm-{}", arch.name())
    });
    fs::create_dir_all(&dir)?;
    // Two runs at once would overwrite each other's files.
    let lock = fs::File::create(dir.join("lock"))?;
    lock.lock()?;
    let rows = if let Some(image) = &options.image {
        let kernel = given(image, options.modules.as_deref())?;
        let guest = guest(&dir, options)?;
        let name = image.file_name().unwrap_or_default().to_string_lossy();
        let (session, problems, took) = boot(&dir, &guest, &name, &kernel, &options.append);
        vec![Row {
            requested: image.display().to_string(),
            session,
            problems,
            took,
            ..Row::default()
        }]
    } else {
        let archive = Archive::read(&dir, arch)?;
        if options.list {
            print!("{}", table::kernels(&archive));
            return Ok(ExitCode::SUCCESS);
        }
        let series = series(options)?;
        run_all(&dir, &archive, &guest(&dir, options)?, &series, options)
    };
    match options.output {
        Format::Table => print!("{}", table::results(&rows)),
        Format::Json => println!("{}", table::json(&rows)?),
    }
    let clean = rows.iter().all(|row| row.problems.is_empty());
    Ok(if clean {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// A kernel of the caller's, with full paths: the directory of modules is named after the kernel's release.
fn given(image: &Path, modules: Option<&Path>) -> Result<Unpacked> {
    let absolute = |path: &Path| {
        path.canonicalize()
            .with_context(|| format!("find {}", path.display()))
    };
    let modules = modules.map(absolute).transpose()?;
    if let Some(dir) = modules.iter().find(|dir| !dir.join("kernel").is_dir()) {
        bail!(
            "--modules {}: name a lib/modules/RELEASE, which has a directory `kernel`",
            dir.display()
        );
    }
    Ok(Unpacked {
        image: absolute(image)?,
        modules,
    })
}

fn series(options: &Options) -> Result<Vec<&str>> {
    let series: Vec<&str> = if options.kernels.is_empty() {
        match options.arch {
            Arch::Amd64 => KERNELS.to_vec(),
            Arch::Arm64 => KERNELS_ARM64.to_vec(),
        }
    } else {
        options.kernels.iter().map(String::as_str).collect()
    };
    if let Some(bad) = series.iter().find(|series| !is_series(series)) {
        bail!("--kernel {bad}: write a series such as 6.1, or newest");
    }
    Ok(series)
}

/// Builds what the guests run.
fn guest(dir: &Path, options: &Options) -> Result<Guest> {
    if options.arch == Arch::native() {
        build::for_running(Needs::Tests, Agent::Release)?;
    }
    let userland = Userland::find(options.arch)?;
    Guest::new(dir, &options.filters, &userland)
}

fn is_series(text: &str) -> bool {
    text == "newest"
        || text
            .split_once('.')
            .is_some_and(|(major, minor)| [major, minor].iter().all(|n| n.parse::<u32>().is_ok()))
}

/// Runs them in parallel; the rows are in the requested order.
fn run_all(
    dir: &Path,
    archive: &Archive,
    guest: &Guest,
    series: &[&str],
    options: &Options,
) -> Vec<Row> {
    let todo = Mutex::new(series.iter().enumerate());
    let rows = Mutex::new(Vec::new());
    // One download at a time.
    let fetching = Mutex::new(());
    thread::scope(|scope| {
        for _ in 0..options.jobs {
            scope.spawn(|| {
                loop {
                    let next = todo
                        .lock()
                        .expect("no thread panics while it holds the lock")
                        .next();
                    let Some((place, series)) = next else {
                        return;
                    };
                    let got = {
                        let _turn = fetching
                            .lock()
                            .expect("no thread panics while it holds the lock");
                        archive.get(series)
                    };
                    let mut row = Row {
                        requested: (*series).to_owned(),
                        ..Row::default()
                    };
                    match got {
                        Ok((kernel, unpacked)) => {
                            (row.session, row.problems, row.took) =
                                boot(dir, guest, &kernel.release, &unpacked, &options.append);
                            row.kernel = Some(kernel);
                        }
                        Err(error) => row.unavailable = Some(format!("{error:#}")),
                    }
                    rows.lock()
                        .expect("no thread panics while it holds the lock")
                        .push((place, row));
                }
            });
        }
    });
    let mut rows = rows
        .into_inner()
        .expect("no thread panics while it holds the lock");
    rows.sort_by_key(|(place, _)| *place);
    rows.into_iter().map(|(_, row)| row).collect()
}

/// Runs a guest to its end: what was read of it, what is wrong, and how long it took.
fn boot(
    dir: &Path,
    guest: &Guest,
    name: &str,
    kernel: &Unpacked,
    append: &str,
) -> (Session, Vec<String>, Duration) {
    let start = Instant::now();
    let mut session = Session::default();
    eprintln!("vm: {name}: booting");
    let mut run = || -> Result<()> {
        let initramfs = guest.initramfs(name, kernel)?;
        let machine = Machine {
            arch: guest.arch(),
            image: &kernel.image,
            initramfs: &initramfs,
            append,
            console: dir.join(format!("console-{name}.log")),
        };
        let mut began = Instant::now();
        let ran = machine.run(|line| {
            let before = session.running.clone();
            session.read_line(line);
            if let Some(test) = before
                && session.running.as_ref() != Some(&test)
            {
                eprintln!("vm: {name}: {test}, {} s", began.elapsed().as_secs());
                began = Instant::now();
            }
        });
        fs::remove_file(&initramfs)?;
        ran?;
        if session.status.is_none() {
            bail!("its console:\n{}", machine.console_tail());
        }
        Ok(())
    };
    let trouble = run().err().map(|error| format!("{error:#}"));
    let mut problems = session.problems();
    problems.extend(trouble);
    let took = start.elapsed();
    eprintln!(
        "vm: {name}: ended after {} s, problems: {}",
        took.as_secs(),
        problems.len()
    );
    for problem in &problems {
        eprintln!("vm: {name}: {problem}");
    }
    (session, problems, took)
}
