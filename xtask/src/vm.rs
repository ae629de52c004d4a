//! The kernel tests on Debian's kernels, booted in QEMU.

mod archive;
mod guest;
mod machine;
mod session;
mod table;

use std::{
    fs,
    path::Path,
    process::ExitCode,
    sync::Mutex,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Result, bail};
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

/// The oldest supported kernel.
const MINIMUM: (u32, u32) = (5, 15);

#[derive(Debug, Args)]
pub struct Options {
    /// The guests' processor
    #[arg(long, value_enum, default_value_t = Arch::native())]
    arch: Arch,
    /// A series such as 6.1, or newest; repeatable [default: 5.10, 6.1, 6.12 and newest; on arm64 without 5.10]
    #[arg(long = "kernel", value_name = "SERIES")]
    kernels: Vec<String>,
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
#[derive(Debug)]
struct Row {
    series: String,
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
    let archive = Archive::read(&dir, arch)?;
    if options.list {
        print!("{}", table::kernels(&archive));
        return Ok(ExitCode::SUCCESS);
    }
    let series: Vec<&str> = if options.kernels.is_empty() {
        match arch {
            Arch::Amd64 => KERNELS.to_vec(),
            Arch::Arm64 => KERNELS_ARM64.to_vec(),
        }
    } else {
        options.kernels.iter().map(String::as_str).collect()
    };
    if let Some(bad) = series.iter().find(|series| !is_series(series)) {
        bail!("--kernel {bad}: write a series such as 6.1, or newest");
    }
    if arch == Arch::native() {
        build::for_running(Needs::Tests, Agent::Release)?;
    }
    let userland = Userland::find(arch)?;
    let guest = Guest::new(&dir, &options.filters, &userland)?;
    let rows = run_all(&dir, &archive, &guest, &series, options.jobs);
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

fn is_series(text: &str) -> bool {
    text == "newest"
        || text
            .split_once('.')
            .is_some_and(|(major, minor)| [major, minor].iter().all(|n| n.parse::<u32>().is_ok()))
}

/// Runs them in parallel; the rows are in the requested order.
fn run_all(dir: &Path, archive: &Archive, guest: &Guest, series: &[&str], jobs: u8) -> Vec<Row> {
    let todo = Mutex::new(series.iter().enumerate());
    let rows = Mutex::new(Vec::new());
    // One download at a time.
    let fetching = Mutex::new(());
    thread::scope(|scope| {
        for _ in 0..jobs {
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
                    let row = match got {
                        Ok((kernel, unpacked)) => boot(dir, guest, series, kernel, &unpacked),
                        Err(error) => Row {
                            series: (*series).to_owned(),
                            kernel: None,
                            session: Session::default(),
                            problems: Vec::new(),
                            unavailable: Some(format!("{error:#}")),
                            took: Duration::ZERO,
                        },
                    };
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

fn boot(dir: &Path, guest: &Guest, series: &str, kernel: Kernel, unpacked: &Unpacked) -> Row {
    let start = Instant::now();
    let mut session = Session::new(&kernel.release);
    let mut trouble = None;
    let release = &kernel.release;
    eprintln!("vm: {release}: booting");
    let mut run = || -> Result<()> {
        let initramfs = guest.initramfs(release, unpacked)?;
        let machine = Machine {
            arch: guest.arch(),
            image: &unpacked.image,
            initramfs: &initramfs,
            console: dir.join(format!("console-{release}.log")),
        };
        let mut began = Instant::now();
        let ran = machine.run(|line| {
            let before = session.running.clone();
            session.read_line(line);
            if let Some(test) = before
                && session.running.as_ref() != Some(&test)
            {
                eprintln!("vm: {release}: {test}, {} s", began.elapsed().as_secs());
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
    if let Err(error) = run() {
        trouble = Some(format!("{error:#}"));
    }
    let mut problems = session.problems();
    problems.extend(trouble);
    let (major, minor, _) = kernel.number;
    if session.refused() && (major, minor) >= MINIMUM {
        problems.push(format!(
            "refused, although it is not older than {}.{}: {}",
            MINIMUM.0,
            MINIMUM.1,
            session.missing.join(", ")
        ));
    }
    if !session.refused() && (major, minor) < MINIMUM {
        problems.push(format!(
            "accepted, although it is older than {}.{}",
            MINIMUM.0, MINIMUM.1
        ));
    }
    eprintln!(
        "vm: {release}: ended after {} s, problems: {}",
        start.elapsed().as_secs(),
        problems.len()
    );
    for problem in &problems {
        eprintln!("vm: {release}: {problem}");
    }
    Row {
        series: series.to_owned(),
        kernel: Some(kernel),
        session,
        problems,
        unavailable: None,
        took: start.elapsed(),
    }
}
