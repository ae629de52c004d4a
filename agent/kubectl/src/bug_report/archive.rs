//! A tar archive of small files (the format ustar of POSIX).

use std::io::{self, Write};

const BLOCK: usize = 512;

/// Writes an archive.
pub struct Archive<W>(W);

impl<W: Write> Archive<W> {
    /// An empty one.
    pub fn new(to: W) -> Self {
        Self(to)
    }

    /// Adds a file.
    ///
    /// # Errors
    /// If it cannot be written, or the names are too long for the format: 155 bytes and 100.
    pub fn add(&mut self, directory: &str, name: &str, content: &[u8]) -> io::Result<()> {
        self.0.write_all(&header(directory, name, content.len())?)?;
        self.0.write_all(content)?;
        let rest = content.len().next_multiple_of(BLOCK) - content.len();
        self.0.write_all(&[0; BLOCK][..rest])
    }

    /// Ends it.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn finish(mut self) -> io::Result<W> {
        self.0.write_all(&[0; 2 * BLOCK])?;
        self.0.flush()?;
        Ok(self.0)
    }
}

fn header(directory: &str, name: &str, length: usize) -> io::Result<[u8; BLOCK]> {
    let mut header = [0; BLOCK];
    let mut put = |at: usize, room: usize, text: &str| {
        let place = header[at..at + room].get_mut(..text.len());
        let place = place.ok_or_else(|| io::Error::other(format!("{text} is too long for tar")))?;
        place.copy_from_slice(text.as_bytes());
        Ok::<(), io::Error>(())
    };
    put(0, 100, name)?;
    put(100, 8, "0000600")?;
    put(108, 8, "0000000")?;
    put(116, 8, "0000000")?;
    put(124, 12, &format!("{length:011o}"))?;
    put(136, 12, "00000000000")?;
    // The sum is computed as if its own field were blank.
    put(148, 8, "        ")?;
    put(156, 1, "0")?;
    put(257, 8, "ustar\x0000")?;
    put(345, 155, directory)?;
    let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
    header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    Ok(header)
}

#[cfg(test)]
mod tests;
