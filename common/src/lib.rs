//! Shared by the kernel programs and the agent: addresses, map rows, and the functions that decide
//! what happens to a connection.
//!
//! Nothing here does I/O, allocates or is `unsafe`. Everything that goes into a map is `repr(C)`,
//! of fixed size and without padding the compiler could leave uninitialized; sizes are asserted.

#![cfg_attr(not(test), no_std)]
#![deny(unsafe_code)]

pub mod addr;
pub mod btf;
pub mod conn;
pub mod count;
pub mod decide;
pub mod event;
pub mod flow;
pub mod forward;
pub mod ids;
pub mod names;
pub mod pod;
pub mod policy;
pub mod rule;
pub mod target;
pub mod task;

/// Version of every map's key and value layout and of its number of rows, part of the pin directory's name: an agent
/// never opens maps of another layout.
pub const LAYOUT_VERSION: u32 = 7;
