//! The list of tests. A test is listed by one line beside its function, `kernel_test!` or
//! `shared_test!`; a function without that line is unused, which the compiler reports.

use std::{
    cmp::Reverse,
    collections::BTreeMap,
    sync::{Arc, mpsc},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Result, anyhow, bail, ensure};
use parking_lot::Mutex;

use crate::{facilities::Facility, fixture::SharedFixture};

/// Longer than any test takes on a busy machine.
const TIME_LIMIT: Duration = Duration::from_secs(300);

/// How long tests took that have ended.
static TOOK: Mutex<Vec<(Duration, String)>> = Mutex::new(Vec::new());

/// What the kernel lacks, and how many tests were skipped for it.
static SKIPPED: Mutex<BTreeMap<&str, usize>> = Mutex::new(BTreeMap::new());

/// A test that has been listed.
#[derive(Debug)]
pub struct KernelTest {
    module: &'static str,
    function: &'static str,
    needs: &'static [Facility],
    run: Run,
}

/// How a test is run.
#[derive(Clone, Copy, Debug)]
pub enum Run {
    /// In a network of its own.
    Own(fn() -> Result<()>),
    /// In the shared network of many tests.
    Shared(fn(&SharedFixture) -> Result<()>),
}

inventory::collect!(KernelTest);

impl KernelTest {
    /// Called by the macros.
    pub const fn new(
        module: &'static str,
        function: &'static str,
        needs: &'static [Facility],
        run: Run,
    ) -> Self {
        Self {
            module,
            function,
            needs,
            run,
        }
    }

    /// The topic, which is the module below the crate's root, and the function.
    pub fn name(&self) -> String {
        lab::test_name(self.module, self.function)
    }

    /// Runs it, no longer than it may take. On a kernel that lacks what it needs it is skipped.
    pub fn run(&self, shared: Option<Arc<SharedFixture>>) -> Result<()> {
        if let Some(lacking) = self.needs.iter().find(|needed| !(needed.is_there)()) {
            ensure!(
                !lacking.is_expected(),
                "no {}, on this kernel",
                lacking.name
            );
            eprintln!("{}: skipped, needs {}", self.name(), lacking.name);
            *SKIPPED.lock().entry(lacking.name).or_default() += 1;
            return Ok(());
        }
        let run = self.run;
        let start = Instant::now();
        let outcome = within(TIME_LIMIT, &self.name(), move || match run {
            Run::Own(run) => run(),
            Run::Shared(run) => run(shared.as_ref().expect("a shared network")),
        });
        let mut took = TOOK.lock();
        took.push((start.elapsed(), self.name()));
        outcome
    }
}

/// Prints what the kernel lacks, and how many tests that skipped.
pub fn print_skipped() {
    for (facility, tests) in SKIPPED.lock().iter() {
        println!("skipped: {tests} tests, which need {facility}");
    }
}

/// Prints which tests took longest, if there were many.
pub fn print_slowest() {
    const MANY: usize = 20;
    let mut took = TOOK.lock();
    if took.len() < MANY {
        return;
    }
    let sum: Duration = took.iter().map(|(took, _)| took).sum();
    took.sort_by_key(|(took, _)| Reverse(*took));
    println!(
        "slowest of {} tests, {:.0} s in all:",
        took.len(),
        sum.as_secs_f64()
    );
    for (took, name) in took.iter().take(MANY / 2) {
        println!("{:6.1} s  {name}", took.as_secs_f64());
    }
}

/// Runs a test in a thread of its own. One that does not end fails by its name; its thread, and what that has
/// started, ends with this process.
fn within(
    limit: Duration,
    name: &str,
    test: impl FnOnce() -> Result<()> + Send + 'static,
) -> Result<()> {
    let (ended, end) = mpsc::channel();
    let thread = thread::Builder::new().name(name.to_owned());
    let thread = thread.spawn(move || {
        let _ = ended.send(test());
    })?;
    match end.recv_timeout(limit) {
        Ok(outcome) => outcome,
        Err(mpsc::RecvTimeoutError::Timeout) => {
            // At once: the harness lists failures when all tests have ended.
            eprintln!("test {name} still runs after {limit:?}");
            bail!("{name} still runs after {limit:?}")
        }
        Err(mpsc::RecvTimeoutError::Disconnected) => {
            let panic = thread.join().err();
            let text = panic.as_deref().and_then(|panic| {
                let literal = panic.downcast_ref::<&str>().copied();
                literal.or_else(|| Some(panic.downcast_ref::<String>()?))
            });
            Err(anyhow!("{name} panicked: {}", text.unwrap_or_default()))
        }
    }
}

/// All tests, by name.
pub fn all() -> Vec<&'static KernelTest> {
    let mut tests: Vec<_> = inventory::iter::<KernelTest>.into_iter().collect();
    tests.sort_by_key(|test| test.name());
    tests
}

/// Lists a function as a test that makes a network of its own, with what it needs of the kernel beyond what sidetrack
/// needs: constants of [`crate::facilities`].
macro_rules! kernel_test {
    ($function:ident $(, needs $facility:ident)*) => {
        inventory::submit! {
            $crate::registry::KernelTest::new(
                module_path!(),
                stringify!($function),
                &[$($crate::facilities::$facility),*],
                $crate::registry::Run::Own($function),
            )
        }
    };
}

/// Lists a function as a test in the shared network of many tests.
macro_rules! shared_test {
    ($function:ident $(, needs $facility:ident)*) => {
        inventory::submit! {
            $crate::registry::KernelTest::new(
                module_path!(),
                stringify!($function),
                &[$($crate::facilities::$facility),*],
                $crate::registry::Run::Shared($function),
            )
        }
    };
}

kernel_test!(a_test_that_hangs_names_itself);
fn a_test_that_hangs_names_itself() -> Result<()> {
    let hang = || {
        loop {
            thread::park();
        }
    };
    let hung = within(Duration::from_millis(50), "an::example", hang);
    let said = format!("{:#}", hung.err().unwrap_or_else(|| anyhow!("it ended")));
    ensure!(said.contains("an::example still runs"), "{said}");
    let panicked = within(TIME_LIMIT, "an::example", || panic!("number {}", 1));
    let said = format!(
        "{:#}",
        panicked.err().unwrap_or_else(|| anyhow!("it ended"))
    );
    ensure!(said.contains("an::example panicked: number 1"), "{said}");
    within(TIME_LIMIT, "an::example", || Ok(()))
}
