//! Compares rows with what they should be.

use std::io;

use bytemuck::Pod;

use crate::kernel::table::Table;

/// Counts rows that are missing or different.
#[derive(Debug)]
pub struct RowCheck {
    repairs: bool,
    /// How many are not as they should be, or were not.
    pub differing: usize,
    /// Used again for each row.
    buffer: Vec<u8>,
}

impl RowCheck {
    /// Rows stay as they are.
    #[must_use]
    pub fn comparing() -> Self {
        Self {
            repairs: false,
            differing: 0,
            buffer: Vec::new(),
        }
    }

    /// Rows that differ are written.
    #[must_use]
    pub fn repairing() -> Self {
        Self {
            repairs: true,
            ..Self::comparing()
        }
    }

    /// Looks at one row.
    ///
    /// # Errors
    /// If the map cannot be read or written.
    pub fn row<K: Pod, V: Pod>(
        &mut self,
        table: &Table<K, V>,
        key: &K,
        value: &V,
    ) -> io::Result<()> {
        if table.holds(key, value, &mut self.buffer)? {
            return Ok(());
        }
        self.differing += 1;
        if self.repairs {
            table.insert(key, value)?;
        }
        Ok(())
    }
}
