//! Rules ahead of the others: what some meshes leave alone by user, port and protocol, by destination, and by ranges of
//! ports.

use super::{Decision, Outbound, Tables, Verdict};
use crate::{
    addr::{Addr, Family},
    policy::{DNS_DIRECT_BITS, List, OUTBOUND_OFF_BIT, OWNER_ENTRIES, Row},
    rule::Rule,
};

/// The lists of these rules.
const LISTS: u32 =
    List::OwnerExcluded.bit() | List::DestinationExcluded.bit() | List::OutPortRangeExcluded.bit();

/// What these rules say of a connection, as a number: the first that matches, and the position of the dialed port.
///
/// The other rules test it in their order. Lookups among them would have the kernel's verifier walk all that comes after
/// each of them twice.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ahead(u32);

impl Ahead {
    /// Lists have at most 10,000 entries.
    const INDEX_BITS: u32 = 14;
    const INDEX: u32 = (1 << Self::INDEX_BITS) - 1;
    const FIRST_SHIFT: u32 = 2 * Self::INDEX_BITS;
    const OWNER: u32 = 1 << Self::FIRST_SHIFT;
    const DESTINATION: u32 = 2 << Self::FIRST_SHIFT;
    const DNS_DIRECT: u32 = 3 << Self::FIRST_SHIFT;
    const OUTBOUND_OFF: u32 = 4 << Self::FIRST_SHIFT;

    /// Of a connection. `ports` is [`List::OwnerTcpPort`] or [`List::OwnerUdpPort`].
    #[inline(always)]
    pub(super) fn of(
        policy: impl Row,
        conn: &Outbound,
        dialed: Addr,
        tables: &impl Tables,
        ports: List,
    ) -> Self {
        if policy.lists & LISTS == 0 {
            return Self(0);
        }
        let bits = Self::look_up(policy.lists, conn, dialed, tables, ports);
        // The verifier takes it for any number then, and walks what comes next once rather than for each.
        Self(bits ^ policy.zero())
    }

    /// The same, not yet any number to the verifier.
    #[inline(always)]
    fn look_up(
        lists: u32,
        conn: &Outbound,
        dialed: Addr,
        tables: &impl Tables,
        ports: List,
    ) -> u32 {
        const ENTRIES: u32 = (1 << OWNER_ENTRIES) - 1;
        let has = |list: List| lists & list.bit() != 0;
        let port = Addr::number(u32::from(conn.port));
        let dns_direct = match dialed.family() {
            Family::V4 => DNS_DIRECT_BITS[0],
            Family::V6 => DNS_DIRECT_BITS[1],
        };
        let mut matching = 0;
        if has(List::OwnerExcluded)
            && let Some(of_user) = tables.range(List::OwnerExcluded, Addr::number(conn.owner.uid))
            && let Some(of_port) = tables.range(ports, port)
        {
            matching = of_user & of_port;
        }
        let mut first = 0;
        if matching & ENTRIES != 0 {
            first = Self::OWNER | (matching & ENTRIES).trailing_zeros() << Self::INDEX_BITS;
        } else if has(List::DestinationExcluded)
            && let Some(position) = tables.range(List::DestinationExcluded, dialed)
        {
            first = Self::DESTINATION | (position & Self::INDEX) << Self::INDEX_BITS;
        } else if matching & 1 << dns_direct != 0 {
            first = Self::DNS_DIRECT;
        } else if matching & 1 << OUTBOUND_OFF_BIT != 0 {
            first = Self::OUTBOUND_OFF;
        }
        let mut of_port = 0;
        if has(List::OutPortRangeExcluded)
            && let Some(position) = tables.range(List::OutPortRangeExcluded, port)
        {
            of_port = (position + 1) & Self::INDEX;
        }
        first | of_port
    }

    /// The decision, unless it is by the port's range.
    #[inline(always)]
    pub(super) fn decision(self) -> Option<Decision> {
        let index = self.0 >> Self::INDEX_BITS & Self::INDEX;
        let rule = match self.0 >> Self::FIRST_SHIFT << Self::FIRST_SHIFT {
            Self::OWNER => Rule::OwnerExcluded,
            Self::DESTINATION => Rule::RangeExcluded,
            Self::DNS_DIRECT => Rule::DnsDirect,
            Self::OUTBOUND_OFF => Rule::OutNoMatch,
            _ => return None,
        };
        Some(Decision::listed(Verdict::Untouched, rule, index))
    }

    /// The decision by the port's range.
    #[inline(always)]
    pub(super) fn by_port(self) -> Option<Decision> {
        let position = (self.0 & Self::INDEX).checked_sub(1)?;
        Some(Decision::listed(
            Verdict::Untouched,
            Rule::OutPortExcluded,
            position,
        ))
    }
}
