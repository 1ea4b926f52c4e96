//! Lines of a text of bounded size: what readers of others' texts share.

use std::io::{self, BufRead, Read};

/// Why there is no next line.
#[derive(Debug)]
pub enum LineError {
    /// The system's word.
    Io(io::Error),
    /// This line is longer than a line may be.
    TooLong(u64),
    /// With this line the text is larger than it may be.
    TooLarge(u64),
}

/// Reads lines one by one, of any bytes.
pub struct Lines<'a> {
    input: &'a mut dyn BufRead,
    max_line: usize,
    max_input: u64,
    line: Vec<u8>,
    number: u64,
    bytes: u64,
}

impl<'a> Lines<'a> {
    /// Lines of at most `max_line` bytes each and `max_input` bytes in all.
    pub fn new(input: &'a mut dyn BufRead, max_line: usize, max_input: u64) -> Self {
        Self {
            input,
            max_line,
            max_input,
            line: Vec::new(),
            number: 0,
            bytes: 0,
        }
    }

    /// The next line with its end, and its number from 1; `None` after the last.
    ///
    /// # Errors
    /// It cannot be read, or there is more than there may be.
    pub fn next_line(&mut self) -> Result<Option<(u64, &[u8])>, LineError> {
        self.line.clear();
        self.number += 1;
        let limit = self.max_line as u64 + 1;
        let length = Read::take(&mut *self.input, limit)
            .read_until(b'\n', &mut self.line)
            .map_err(LineError::Io)?;
        if length == 0 {
            return Ok(None);
        }
        if length > self.max_line {
            return Err(LineError::TooLong(self.number));
        }
        self.bytes = self.bytes.saturating_add(length as u64);
        if self.bytes > self.max_input {
            return Err(LineError::TooLarge(self.number));
        }
        Ok(Some((self.number, &self.line)))
    }
}
