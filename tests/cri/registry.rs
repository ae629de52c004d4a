//! The list of tests: one line beside each function.

use anyhow::Result;

use crate::fixture::Fixture;

/// A test that has been listed.
#[derive(Debug)]
pub struct CriTest {
    /// The function's name.
    pub function: &'static str,
    /// What it runs.
    pub run: fn(&Fixture) -> Result<()>,
}

inventory::collect!(CriTest);

impl CriTest {
    /// The name as it is listed and filtered.
    pub fn name(&self) -> String {
        format!("cri::{}", self.function)
    }
}

/// All tests, by name.
pub fn all() -> Vec<&'static CriTest> {
    let mut tests: Vec<_> = inventory::iter::<CriTest>.into_iter().collect();
    tests.sort_by_key(|test| test.name());
    tests
}

/// Lists a function as a test.
macro_rules! cri_test {
    ($function:ident) => {
        inventory::submit! {
            $crate::registry::CriTest {
                function: stringify!($function),
                run: $function,
            }
        }
    };
}
