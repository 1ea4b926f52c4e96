//! Packets of a file, one at a time.

use crate::import::json::End;
use std::io::{self, BufRead, BufReader, Read};

/// Longest packet, bytes: what is longer is no packet of a trace.
const MAX_PACKET: u64 = 64 << 20;
/// How much is read at once, bytes.
const BUFFER: usize = 1 << 18;

/// What comes next in a file.
#[derive(Debug)]
pub(in crate::import) enum Next {
    /// A packet, which begins at this byte.
    Packet(u64),
    /// There is no more, and why.
    Over(End),
}

/// A `Trace` message: a row of packets, each field 1 with a length.
pub(in crate::import) struct Frames<R> {
    from: BufReader<R>,
    offset: u64,
    /// Longest packet, bytes.
    limit: u64,
}

/// Why a field could not be read.
enum Broken {
    /// The file ends.
    Cut,
    /// It is no field.
    Bad,
    Io(io::Error),
}

impl<R: Read> Frames<R> {
    pub(super) fn new(from: R) -> Self {
        Self::with_limit(from, MAX_PACKET)
    }

    /// Packets of at most `limit` bytes.
    pub(in crate::import) fn with_limit(from: R, limit: u64) -> Self {
        Self {
            from: BufReader::with_capacity(BUFFER, from),
            offset: 0,
            limit,
        }
    }

    /// Where we are, bytes.
    pub(super) fn offset(&self) -> u64 {
        self.offset
    }

    /// What a message needs: the next byte, if there is one.
    pub(super) fn first(&mut self) -> io::Result<Option<u8>> {
        Ok(self.from.fill_buf()?.first().copied())
    }

    /// The next packet, into `packet`. Fields that are none are skipped.
    pub(in crate::import) fn next(&mut self, packet: &mut Vec<u8>) -> Next {
        loop {
            let offset = self.offset;
            match self.first() {
                Ok(None) => return Next::Over(End::Whole),
                Ok(Some(_)) => {}
                Err(error) => return Next::Over(failed(offset, &error)),
            }
            match self.field(packet) {
                Ok(true) => return Next::Packet(offset),
                Ok(false) => {}
                Err(Broken::Cut) => return Next::Over(End::CutOff { offset }),
                Err(Broken::Bad) => return Next::Over(End::Trailing { offset }),
                Err(Broken::Io(error)) => return Next::Over(failed(offset, &error)),
            }
        }
    }

    /// Reads a field; false: it is no packet.
    fn field(&mut self, packet: &mut Vec<u8>) -> Result<bool, Broken> {
        let key = self.varint()?;
        let len = match (key >> 3, key & 7) {
            (0, _) => return Err(Broken::Bad),
            (_, 0) => {
                self.varint()?;
                return Ok(false);
            }
            (_, 1) => 8,
            (_, 2) => self.varint()?,
            (_, 5) => 4,
            _ => return Err(Broken::Bad),
        };
        if len > self.limit {
            return Err(Broken::Bad);
        }
        packet.clear();
        let read = (&mut self.from).take(len).read_to_end(packet);
        self.offset += packet.len() as u64;
        read.map_err(Broken::Io)?;
        match packet.len() as u64 == len {
            true => Ok(key == (1 << 3 | 2)),
            false => Err(Broken::Cut),
        }
    }

    fn varint(&mut self) -> Result<u64, Broken> {
        let mut value = 0u64;
        for shift in (0..70).step_by(7) {
            let byte = self.byte()?;
            value |= u64::from(byte & 0x7f).checked_shl(shift).unwrap_or(0);
            if byte < 0x80 {
                return Ok(value);
            }
        }
        Err(Broken::Bad)
    }

    fn byte(&mut self) -> Result<u8, Broken> {
        let byte = self.first().map_err(Broken::Io)?.ok_or(Broken::Cut)?;
        self.from.consume(1);
        self.offset += 1;
        Ok(byte)
    }
}

fn failed(offset: u64, error: &io::Error) -> End {
    End::Failed {
        offset,
        reason: error.to_string(),
    }
}
