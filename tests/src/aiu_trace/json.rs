//! How numbers and files are written.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use anyhow::Context as _;

/// How counters are written: all are in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Values {
    /// `2552537956`.
    Integer,
    /// `"2552537956"`.
    Decimal,
    /// `"0x98251f64"`.
    Hex,
}

impl Values {
    /// The JSON of a number.
    #[must_use]
    pub fn json(self, value: u64) -> String {
        match self {
            Self::Integer => value.to_string(),
            Self::Decimal => format!("\"{value}\""),
            Self::Hex => format!("\"{value:#x}\""),
        }
    }
}

/// How a file is packed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Packing {
    /// As it is.
    None,
    /// `.gz`.
    Gzip,
    /// `.zst`.
    Zstd,
}

impl Packing {
    /// Writes `text` into the file `name` in `dir`, with the packing's extension
    /// behind it; returns its path.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn write(self, dir: &Path, name: &str, text: &str) -> anyhow::Result<PathBuf> {
        let extension = match self {
            Self::None => "",
            Self::Gzip => ".gz",
            Self::Zstd => ".zst",
        };
        let path = dir.join(format!("{name}{extension}"));
        let file = File::create(&path).with_context(|| path.display().to_string())?;
        let mut file = BufWriter::new(file);
        match self {
            Self::None => file.write_all(text.as_bytes())?,
            Self::Gzip => {
                let mut packer =
                    flate2::write::GzEncoder::new(file, flate2::Compression::default());
                packer.write_all(text.as_bytes())?;
                file = packer.finish()?;
            }
            Self::Zstd => zstd::stream::copy_encode(text.as_bytes(), &mut file, 3)?,
        }
        file.flush()?;
        Ok(path)
    }
}
