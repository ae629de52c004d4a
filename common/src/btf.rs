//! Types of map fields for which the kernel programs have better names than user space has.
//!
//! The programs' types become the maps' BTF, which `bpftool map dump` shows. User space reads plain numbers: what it
//! finds in a map may be of another version, or damaged.

/// A byte of a text. The build renames this type to `char` in BTF (`agent/datapath/build/btf.rs`), so nothing else may have it.
#[cfg(target_arch = "bpf")]
pub type TextByte = i8;
/// A byte of a text, as user space has them.
#[cfg(not(target_arch = "bpf"))]
pub type TextByte = u8;

/// A [`Rule`](crate::rule::Rule).
#[cfg(target_arch = "bpf")]
pub type RuleField = crate::rule::Rule;
/// The number of a [`Rule`](crate::rule::Rule).
#[cfg(not(target_arch = "bpf"))]
pub type RuleField = u32;
