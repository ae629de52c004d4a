//! The listeners of sidecars, with the connections that wait to be accepted: one pass of a program over the listener
//! map, for all pods at once and without entering any.

use std::{
    io,
    ops::ControlFlow,
    os::fd::{AsFd as _, OwnedFd},
};

use anyhow::Result;
use aya::{Btf, Ebpf};
use sidetrack_common::{
    conn::{ListenerKey, ListenerQueue},
    names,
};

use super::{maps::from_pin, objects::load_iterator, pins::Pins, sys, table::Table};

/// The program, and the map that it walks over.
#[derive(Debug)]
pub struct Queues {
    program: OwnedFd,
    listeners: Table<ListenerKey, u64>,
}

impl Queues {
    /// Loads the program.
    ///
    /// # Errors
    /// If the kernel does not take it.
    pub fn load((ebpf, types): (&mut Ebpf, &Btf), pins: &Pins) -> Result<Self> {
        Ok(Self {
            program: load_iterator((ebpf, types), "st_queues", "sockmap")?,
            listeners: from_pin(pins, names::LISTENERS)?,
        })
    }

    /// All listeners.
    ///
    /// # Errors
    /// If the map cannot be walked over.
    pub fn read(&self) -> io::Result<Vec<ListenerQueue>> {
        let listeners = sys::iterate_map(self.program.as_fd(), self.listeners.fd())?;
        let mut bytes = Vec::new();
        sys::read_iterator(listeners, |read| {
            bytes.extend_from_slice(read);
            ControlFlow::Continue(())
        })?;
        let rows = bytes.chunks_exact(size_of::<ListenerQueue>());
        Ok(rows.map(bytemuck::pod_read_unaligned).collect())
    }
}
