//! Answers of rtnetlink(7), of which nothing that a pod can write into them hides the rest.
//!
//! A pod names its interfaces and addresses in any bytes, and gives them attributes that no reader has heard of. Only what is needed
//! of an answer is decoded, and one that cannot be decoded says so of itself.

use std::convert::Infallible;

use netlink_packet_core::{NetlinkDeserializable, NetlinkHeader};
use netlink_packet_route::RouteNetlinkMessage;

/// Bytes of `struct nlattr`.
const HEADER: usize = 4;
/// The part of an attribute's type that is no flag (`NLA_TYPE_MASK`).
const TYPE_MASK: u16 = 0x3fff;

/// An answer to a dump.
#[derive(Debug)]
pub(super) struct Answer {
    /// What it says; `None` if it cannot be read.
    pub(super) message: Option<RouteNetlinkMessage>,
    /// Its length.
    pub(super) bytes: usize,
    family: u8,
}

impl Answer {
    /// The family that it is about; `None` if that is not one of the two.
    pub(super) fn is_v6(&self) -> Option<bool> {
        match i32::from(self.family) {
            libc::AF_INET => Some(false),
            libc::AF_INET6 => Some(true),
            _ => None,
        }
    }
}

impl NetlinkDeserializable for Answer {
    type Error = Infallible;

    fn deserialize(header: &NetlinkHeader, payload: &[u8]) -> Result<Self, Infallible> {
        let needed = needed(header.message_type, payload);
        Ok(Self {
            message: RouteNetlinkMessage::deserialize(header, &needed).ok(),
            bytes: payload.len(),
            family: payload.first().copied().unwrap_or_default(),
        })
    }
}

/// What an answer is read for, by its type: the bytes before its attributes, the attributes (all if there are none), and
/// those of them that are names of interfaces.
const fn needed_of(message_type: u16) -> Option<(usize, &'static [u16], &'static [u16])> {
    Some(match message_type {
        libc::RTM_NEWLINK => (
            16,
            &[libc::IFLA_IFNAME, libc::IFLA_MASTER, libc::IFLA_LINKINFO],
            &[libc::IFLA_IFNAME],
        ),
        libc::RTM_NEWADDR => (
            8,
            &[libc::IFA_ADDRESS, libc::IFA_LOCAL, libc::IFA_FLAGS],
            &[],
        ),
        libc::RTM_NEWROUTE => (
            12,
            &[
                libc::RTA_DST,
                libc::RTA_OIF,
                libc::RTA_GATEWAY,
                libc::RTA_PRIORITY,
                libc::RTA_PREFSRC,
                libc::RTA_MULTIPATH,
                libc::RTA_TABLE,
            ],
            &[],
        ),
        // One with an attribute that is not known is not followed.
        libc::RTM_NEWRULE => (12, &[], &[FRA_IIFNAME, FRA_OIFNAME]),
        _ => return None,
    })
}

/// `FRA_IIFNAME` of linux/fib_rules.h.
const FRA_IIFNAME: u16 = 3;
/// `FRA_OIFNAME`.
const FRA_OIFNAME: u16 = 17;

/// What is needed of a message, with names that are text.
fn needed(message_type: u16, payload: &[u8]) -> Vec<u8> {
    let Some((header, wanted, names)) = needed_of(message_type) else {
        return payload.to_vec();
    };
    let (header, attributes) = payload.split_at(header.min(payload.len()));
    let mut kept = header.to_vec();
    for (kind, content) in Attributes(attributes) {
        let is_needed = wanted.is_empty() || wanted.contains(&kind);
        if !is_needed {
            continue;
        }
        let mut content = content.to_vec();
        if names.contains(&kind) {
            if str::from_utf8(&content).is_err() {
                let name = content.strip_suffix(b"\0").unwrap_or(&content);
                content = name.escape_ascii().to_string().into_bytes();
            }
        } else if (message_type, kind) == (libc::RTM_NEWLINK, libc::IFLA_LINKINFO) {
            // Of its kind, not what that kind is made of.
            let mut inner = Vec::new();
            let kinds = Attributes(&content).filter(|(kind, _)| *kind == libc::IFLA_INFO_KIND);
            kinds.for_each(|(kind, name)| add(&mut inner, kind, name));
            content = inner;
        }
        add(&mut kept, kind, &content);
    }
    kept
}

/// Adds an attribute, which is padded to four bytes.
fn add(to: &mut Vec<u8>, kind: u16, content: &[u8]) {
    let length = (HEADER + content.len()) as u16;
    to.extend_from_slice(&length.to_ne_bytes());
    to.extend_from_slice(&kind.to_ne_bytes());
    to.extend_from_slice(content);
    to.resize(to.len().next_multiple_of(4), 0);
}

/// Types of attributes and what they hold, as far as there are whole ones.
struct Attributes<'a>(&'a [u8]);

impl<'a> Iterator for Attributes<'a> {
    type Item = (u16, &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        let [a, b, c, d] = *self.0.first_chunk::<HEADER>()?;
        let length = usize::from(u16::from_ne_bytes([a, b]));
        let content = self.0.get(HEADER..length)?;
        self.0 = self.0.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some((u16::from_ne_bytes([c, d]) & TYPE_MASK, content))
    }
}

#[cfg(test)]
mod tests;
