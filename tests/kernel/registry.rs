//! The list of tests. A test is listed by one line beside its function, `kernel_test!` or
//! `shared_test!`; a function without that line is unused, which the compiler reports.

use anyhow::Result;

use crate::fixture::SharedFixture;

/// A test that has been listed.
#[derive(Debug)]
pub struct KernelTest {
    module: &'static str,
    function: &'static str,
    /// What it runs.
    pub run: Run,
}

/// How a test is run.
#[derive(Clone, Copy, Debug)]
pub enum Run {
    /// In a network of its own.
    Own(fn() -> Result<()>),
    /// In the network that many tests share.
    Shared(fn(&SharedFixture) -> Result<()>),
}

inventory::collect!(KernelTest);

impl KernelTest {
    /// Called by the macros.
    pub const fn new(module: &'static str, function: &'static str, run: Run) -> Self {
        Self {
            module,
            function,
            run,
        }
    }

    /// The topic, which is the module below the crate's root, and the function.
    pub fn name(&self) -> String {
        lab::test_name(self.module, self.function)
    }
}

/// All tests, by name.
pub fn all() -> Vec<&'static KernelTest> {
    let mut tests: Vec<_> = inventory::iter::<KernelTest>.into_iter().collect();
    tests.sort_by_key(|test| test.name());
    tests
}

/// Lists a function as a test that makes a network of its own.
macro_rules! kernel_test {
    ($function:ident) => {
        inventory::submit! {
            $crate::registry::KernelTest::new(
                module_path!(),
                stringify!($function),
                $crate::registry::Run::Own($function),
            )
        }
    };
}

/// Lists a function as a test in the network that many tests share.
macro_rules! shared_test {
    ($function:ident) => {
        inventory::submit! {
            $crate::registry::KernelTest::new(
                module_path!(),
                stringify!($function),
                $crate::registry::Run::Shared($function),
            )
        }
    };
}
