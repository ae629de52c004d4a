//! Reads inputs and collects their errors.

use ipnet::IpNet;
use sidetrack_common::policy::OWNER_ENTRIES;

use super::values::{cidr, plain_port, port_range};
use crate::{
    error::PolicyError,
    exclusions::{OwnerExclusion, Span, spans},
    inputs::{Input, Inputs, Sourced},
    text::shortened,
};

/// An entry of a list.
pub(crate) trait Entry {
    /// How many entries a list may have. The kernel's maps hold the lists of all pods, so one pod must
    /// not fill them.
    const MAX_ENTRIES: usize = 10_000;
}

/// A port.
impl Entry for u16 {}

/// A port or a range of them, as iptables reads it.
pub(super) struct PortRange(pub(super) Span);

impl Entry for PortRange {}

/// A user or group.
impl Entry for u32 {
    const MAX_ENTRIES: usize = 1000;
}

impl Entry for IpNet {}

/// A range of ports. Each may take thirty rows.
impl Entry for Span {
    const MAX_ENTRIES: usize = 1000;
}

/// Users with ports.
impl Entry for OwnerExclusion {
    const MAX_ENTRIES: usize = OWNER_ENTRIES as usize;
}

impl Entry for Vec<OwnerExclusion> {
    const MAX_ENTRIES: usize = OWNER_ENTRIES as usize;
}

/// An interface.
impl Entry for String {}

/// Reads settings and collects their errors.
#[derive(Default)]
pub(crate) struct Settings {
    pub(crate) errors: Vec<PolicyError>,
    /// What was assumed or ignored, as sentences.
    pub(crate) remarks: Vec<String>,
}

impl Settings {
    /// A single value; `None` if it cannot be used.
    pub(crate) fn one<T>(
        &mut self,
        found: &Sourced,
        parse: impl Fn(&str) -> Result<T, String>,
    ) -> Option<T> {
        match parse(found.value.trim()) {
            Ok(value) => Some(value),
            Err(problem) => {
                self.refuse(found, &problem);
                None
            }
        }
    }

    /// A list with something between its entries; empty ones are dropped, spaces around entries are tolerated.
    pub(crate) fn list<T: Entry>(
        &mut self,
        found: Option<&Sourced>,
        between: char,
        parse: impl Fn(&str) -> Result<T, String>,
    ) -> Vec<T> {
        let Some(found) = found else {
            return Vec::new();
        };
        let items = found.value.split(between).map(str::trim);
        let items = items.filter(|item| !item.is_empty());
        entries(found, items, parse, &mut self.errors)
    }

    /// A list's items that can be read. The others have no effect in the mesh's own program either, and are named in
    /// a remark.
    pub(crate) fn readable<'a, T: Entry>(
        &mut self,
        found: &Sourced,
        items: impl Iterator<Item = &'a str>,
        parse: impl Fn(&str) -> Result<T, String>,
    ) -> Vec<T> {
        const NAMED: usize = 3;
        let (readable, ignored): (Vec<&str>, Vec<&str>) =
            items.partition(|item| parse(item).is_ok());
        if let Some(more) = ignored.len().checked_sub(1) {
            let named = ignored.iter().take(NAMED);
            let named: Vec<String> = named.map(|item| format!("{:?}", shortened(item))).collect();
            let dots = if more >= NAMED { ", ..." } else { "" };
            self.remarks.push(format!(
                "{}{dots} in {} cannot be read and is ignored, as the mesh's own program does",
                named.join(", "),
                found.origin
            ));
        }
        entries(found, readable.into_iter(), parse, &mut self.errors)
    }

    /// A value that cannot be used.
    pub(crate) fn refuse(&mut self, found: &Sourced, problem: &str) {
        self.errors.push(error(found, problem.to_owned()));
    }
}

/// Reads inputs.
pub(super) struct Reader<'a> {
    pub(super) inputs: &'a Inputs,
    pub(super) settings: Settings,
}

impl Reader<'_> {
    /// A single value; `None` if it is not set or cannot be used.
    pub(super) fn one<T>(
        &mut self,
        input: Input,
        parse: fn(&str) -> Result<T, String>,
    ) -> Option<T> {
        self.settings.one(self.inputs.get(input)?, parse)
    }

    /// A comma-separated list, if it is set.
    pub(super) fn list<T: Entry>(
        &mut self,
        input: Input,
        parse: fn(&str) -> Result<T, String>,
    ) -> Option<Vec<T>> {
        let found = self.inputs.get(input)?;
        Some(self.settings.list(Some(found), ',', parse))
    }

    /// A list of ports, which in arguments may have ranges. Where each of their ports takes a row there may be so many.
    pub(super) fn ports(&mut self, input: Input, most: Option<usize>) -> Option<Vec<Span>> {
        if !self.inputs.is_of_tool(input) {
            return self.list(input, plain_port).map(spans);
        }
        let ports = self.list(input, |text| port_range(text).map(PortRange))?;
        let ports: Vec<Span> = ports.into_iter().map(|PortRange(ports)| ports).collect();
        let ranges = ports.iter().filter(|ports| !ports.is_one());
        let count: usize = ranges
            .map(|ports| (ports.last - ports.first + 1) as usize)
            .sum();
        if let Some(most) = most.filter(|most| count > *most)
            && let Some(found) = self.inputs.get(input)
        {
            let problem = format!("its ranges have {count} ports; write at most {most}");
            self.settings.refuse(found, &problem);
            return Some(Vec::new());
        }
        Some(ports)
    }

    /// A list of ranges of addresses. istio-iptables ignores what is none in its arguments.
    pub(super) fn ranges(&mut self, input: Input) -> Option<Vec<IpNet>> {
        let found = self.inputs.get(input)?;
        if !self.inputs.is_of_tool(input) || found.value.trim() == "*" {
            return self.list(input, cidr);
        }
        let items = found.value.split(',').map(str::trim);
        let items = items.filter(|item| !item.is_empty());
        Some(self.settings.readable(found, items, cidr))
    }
}

/// The entries of a list that was found somewhere; those that cannot be used are errors.
pub(crate) fn entries<'a, T: Entry>(
    found: &Sourced,
    items: impl Iterator<Item = &'a str>,
    parse: impl Fn(&str) -> Result<T, String>,
    errors: &mut Vec<PolicyError>,
) -> Vec<T> {
    const NAMED: usize = 10;
    let mut values = Vec::new();
    let mut bad = 0;
    for item in items {
        if values.len() + bad == T::MAX_ENTRIES {
            errors.push(error(
                found,
                format!("write at most {} entries", T::MAX_ENTRIES),
            ));
            break;
        }
        match parse(item) {
            Ok(value) => values.push(value),
            Err(problem) => {
                bad += 1;
                if bad <= NAMED {
                    errors.push(error(found, problem));
                }
            }
        }
    }
    if bad > NAMED {
        let more = bad - NAMED;
        errors.push(error(found, format!("{more} more entries cannot be used")));
    }
    values
}

fn error(found: &Sourced, problem: String) -> PolicyError {
    PolicyError {
        origin: found.origin.clone(),
        value: shortened(&found.value),
        problem,
    }
}

#[cfg(test)]
mod tests;
