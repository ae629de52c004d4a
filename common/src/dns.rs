//! Which DNS queries are captured, and where they go.

/// The port that queries are sent to.
pub const DNS_PORT: u16 = 53;

/// Where a policy's rules for DNS stand among the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum DnsPosition {
    /// Before all others, the proxy's included.
    First = 0,
    /// After the rules by owner and group.
    AfterOwners = 2, // As in the rows of earlier agents.
}

/// What becomes of TCP connections to port 53.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum DnsTcp {
    /// They follow the other rules.
    Ordinary = 0,
    /// They are captured where the rules for DNS stand.
    Captured = 1,
    /// They follow the other rules. What these would send to the outbound port goes to the DNS port.
    InsteadOfOutbound = 2,
}

/// A policy's rules for DNS. The servers are in [`List::DnsServer`](crate::policy::List::DnsServer).
///
/// In the kernel it is the value of a row of ports ([`List::Dns`](crate::policy::List::Dns)).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DnsBlock(u32);

impl DnsBlock {
    // One bit for each answer: a set bit says nothing about the others to the kernel's verifier, so that it does not
    // walk the rules once more for each combination.
    const POSITION_BIT: u32 = 1 << 16;
    const TCP_BIT: u32 = 1 << 19;
    const INSTEAD_OF_OUTBOUND_BIT: u32 = 1 << 22;
    const UDP_BIT: u32 = 1 << 23;
    const EXCLUSIONS_BIT: u32 = 1 << 24;

    /// No query is captured.
    pub const NONE: Self = Self(0);

    /// Rules that capture nothing but what is added to them. The DNS port in host order.
    #[must_use]
    pub const fn new(port: u16, position: DnsPosition, tcp: DnsTcp) -> Self {
        let tcp = match tcp {
            DnsTcp::Ordinary => 0,
            DnsTcp::Captured => Self::TCP_BIT << position as u32,
            DnsTcp::InsteadOfOutbound => Self::INSTEAD_OF_OUTBOUND_BIT,
        };
        Self(port as u32 | Self::POSITION_BIT << position as u32 | tcp)
    }

    /// The same, and UDP queries are captured.
    #[must_use]
    pub const fn with_udp(self) -> Self {
        Self(self.0 | Self::UDP_BIT)
    }

    /// The same, and the exclusions of ports and of the sidecar's own address apply to UDP as well.
    #[must_use]
    pub const fn with_udp_exclusions(self) -> Self {
        Self(self.0 | Self::EXCLUSIONS_BIT)
    }

    /// As it is in the kernel.
    #[inline(always)]
    #[must_use]
    pub const fn to_bits(self) -> u32 {
        self.0
    }

    /// From the kernel.
    #[inline(always)]
    #[must_use]
    pub const fn from_bits(bits: u32) -> Self {
        Self(bits)
    }

    /// Where captured queries go, host order. 0 in [`DnsBlock::NONE`].
    #[inline(always)]
    #[must_use]
    pub const fn port(self) -> u16 {
        self.0 as u16
    }

    /// Whether the rules stand here.
    #[inline(always)]
    #[must_use]
    pub const fn is_at(self, position: DnsPosition) -> bool {
        self.0 & Self::POSITION_BIT << position as u32 != 0
    }

    /// Whether the rules stand here and capture TCP connections.
    #[inline(always)]
    #[must_use]
    pub const fn captures_tcp_at(self, position: DnsPosition) -> bool {
        self.0 & Self::TCP_BIT << position as u32 != 0
    }

    /// See [`DnsTcp::InsteadOfOutbound`].
    #[inline(always)]
    #[must_use]
    pub const fn is_instead_of_outbound(self) -> bool {
        self.0 & Self::INSTEAD_OF_OUTBOUND_BIT != 0
    }

    /// Whether UDP queries are captured.
    #[inline(always)]
    #[must_use]
    pub const fn has_udp(self) -> bool {
        self.0 & Self::UDP_BIT != 0
    }

    /// See [`DnsBlock::with_udp_exclusions`].
    #[inline(always)]
    #[must_use]
    pub const fn has_udp_exclusions(self) -> bool {
        self.0 & Self::EXCLUSIONS_BIT != 0
    }
}

#[cfg(test)]
mod tests;
