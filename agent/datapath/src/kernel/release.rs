//! The running kernel's release.

use std::{fs, io};

/// Such as `6.18.44-fc-v445`.
pub(super) fn text() -> io::Result<String> {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease")?;
    Ok(release.trim().to_owned())
}

/// The same, or `unknown`.
#[must_use]
pub fn text_or_unknown() -> String {
    text().unwrap_or_else(|_| "unknown".to_owned())
}

/// Its major and minor number.
pub(super) fn version() -> Option<(u32, u32)> {
    parse(&text().ok()?)
}

/// Major and minor number of a release.
pub(super) fn parse(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests;
