//! Reads inputs and collects their errors.

use ipnet::IpNet;

use crate::{
    error::PolicyError,
    inputs::{Input, Inputs, Sourced},
    text::shortened,
};

/// An entry of a list.
pub(super) trait Entry {
    /// How many entries a list may have. The kernel's maps hold the lists of all pods, so one pod must
    /// not fill them.
    const MOST: usize = 10_000;
}

/// A port.
impl Entry for u16 {}

/// A user or group.
impl Entry for u32 {
    const MOST: usize = 1000;
}

impl Entry for IpNet {}

/// An interface.
impl Entry for String {}

/// Reads inputs and collects their errors.
pub(super) struct Reader<'a> {
    pub(super) inputs: &'a Inputs,
    pub(super) errors: Vec<PolicyError>,
}

impl Reader<'_> {
    /// A single value; `None` if it is not set or cannot be used.
    pub(super) fn one<T>(
        &mut self,
        input: Input,
        parse: fn(&str) -> Result<T, String>,
    ) -> Option<T> {
        let found = self.inputs.get(input)?;
        match parse(found.value.trim()) {
            Ok(value) => Some(value),
            Err(problem) => {
                self.error(found, problem);
                None
            }
        }
    }

    /// A comma-separated list; empty items are dropped, spaces around items are tolerated.
    pub(super) fn list<T: Entry>(
        &mut self,
        input: Input,
        parse: fn(&str) -> Result<T, String>,
    ) -> Option<Vec<T>> {
        const NAMED: usize = 10;
        let found = self.inputs.get(input)?;
        let items = found.value.split(',').map(str::trim);
        let mut values = Vec::new();
        let mut bad = 0;
        for item in items.filter(|item| !item.is_empty()) {
            if values.len() + bad == T::MOST {
                self.error(found, format!("write at most {} entries", T::MOST));
                break;
            }
            match parse(item) {
                Ok(value) => values.push(value),
                Err(problem) => {
                    bad += 1;
                    if bad <= NAMED {
                        self.error(found, problem);
                    }
                }
            }
        }
        if bad > NAMED {
            let more = bad - NAMED;
            self.error(found, format!("{more} more entries cannot be used"));
        }
        Some(values)
    }

    fn error(&mut self, found: &Sourced, problem: String) {
        self.errors.push(PolicyError {
            origin: found.origin.clone(),
            value: shortened(&found.value),
            problem,
        });
    }
}

#[cfg(test)]
mod tests;
