//! Identifiers, one type each. A cookie, an inode and a policy id are all plain numbers, and a function
//! that takes two of them must not accept them in the wrong order.
//!
//! Each has an explicit constructor and an explicit getter, and no arithmetic: nothing converts
//! one kind of identifier into another without naming both.

use core::fmt;

macro_rules! id {
    ($(#[$doc:meta])+ $name:ident($number:ty)) => {
        $(#[$doc])+
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(transparent)]
        pub struct $name($number);

        impl $name {
            /// The identifier with this number.
            #[inline(always)]
            #[must_use]
            pub const fn new(number: $number) -> Self {
                Self(number)
            }

            /// The number, for map keys and system calls.
            #[inline(always)]
            #[must_use]
            pub const fn get(self) -> $number {
                self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }

        const _: () = assert!(size_of::<$name>() == size_of::<$number>());
    };
}

id! {
    /// Cookie of a network namespace (`SO_NETNS_COOKIE`): unique until reboot, never reused.
    NetnsCookie(u64)
}

id! {
    /// Inode of a network namespace, as `/proc/PID/ns/net` shows it. The kernel reuses the number
    /// once the namespace is gone.
    NetnsInode(u64)
}

id! {
    /// Number of a policy in the kernel's maps.
    PolicyId(u32)
}

#[cfg(test)]
mod tests;
