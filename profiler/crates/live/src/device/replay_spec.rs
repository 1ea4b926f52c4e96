//! What is replayed, in the form in which users write it.

use super::recorder::Shape;
use aiprof_model::{
    eu_stall::{Layout, RECORD_SIZE, capture::Header},
    wire::DeviceStream,
};
use std::{path::PathBuf, str::FromStr};

/// What the bytes are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplayFormat {
    /// Records as a driver hands them out.
    Raw(Layout),
    /// A device capture, whose header names the layout.
    Capture,
}

/// What is replayed: `LAYOUT:PATH[,gt=N][,card=N][,base=0xADDR][,cycles=N][,name=TEXT]`,
/// where LAYOUT is `pvc`, `xe2`, `xe3`, `xe3p`, or `capture`. Values given here replace
/// those in a capture's header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplaySpec {
    /// What the bytes are.
    pub format: ReplayFormat,
    /// A file, a FIFO or a unix socket.
    pub path: PathBuf,
    /// GT of the card.
    pub gt: Option<u32>,
    /// Index of the card among those sampled.
    pub card: Option<u32>,
    /// The instruction base address; without it, addresses stay relative where the
    /// layout has them so.
    pub base: Option<u64>,
    /// Device cycles between samples.
    pub cycles: Option<u32>,
    /// A name for people.
    pub name: Option<String>,
}

impl FromStr for ReplaySpec {
    type Err = String;

    /// # Errors
    /// Anything but the form above.
    fn from_str(text: &str) -> Result<Self, String> {
        let (format, rest) = text
            .split_once(':')
            .ok_or("it must be LAYOUT:PATH, such as xe2:/tmp/stalls")?;
        let format = match format {
            "capture" => ReplayFormat::Capture,
            layout => ReplayFormat::Raw(layout.parse().map_err(|error| {
                format!("{error}; use 'capture' for a device capture, which contains its layout")
            })?),
        };
        let mut parts = rest.split(',');
        let path = parts.next().filter(|path| !path.is_empty());
        let mut spec = Self {
            format,
            path: path.ok_or("the path after the layout is missing")?.into(),
            gt: None,
            card: None,
            base: None,
            cycles: None,
            name: None,
        };
        for part in parts {
            spec.set(part)?;
        }
        Ok(spec)
    }
}

impl ReplaySpec {
    fn set(&mut self, part: &str) -> Result<(), String> {
        let (key, value) = part
            .split_once('=')
            .ok_or_else(|| format!("'{part}' is not KEY=VALUE"))?;
        let number = || {
            let number = value.parse::<u32>();
            number.map_err(|_| format!("{key}: '{value}' is not a number"))
        };
        match key {
            "gt" => self.gt = Some(number()?),
            "card" => self.card = Some(number()?),
            "cycles" => self.cycles = Some(number()?),
            "base" => {
                let digits = value.strip_prefix("0x");
                let base = digits.and_then(|digits| u64::from_str_radix(digits, 16).ok());
                let error = || format!("base: '{value}' is not a hexadecimal number (0x...)");
                self.base = Some(base.ok_or_else(error)?);
            }
            "name" => self.name = Some(value.to_owned()),
            _ => {
                return Err(format!(
                    "unknown key '{key}' (known: gt, card, base, cycles, name)"
                ));
            }
        }
        Ok(())
    }

    /// The stream and its shape; `header` is that of a capture.
    pub(super) fn stream(&self, id: u32, header: Option<&Header>) -> Option<(DeviceStream, Shape)> {
        let layout = match self.format {
            ReplayFormat::Raw(layout) => layout,
            ReplayFormat::Capture => header?.layout,
        };
        let of_capture = header
            .map(|h| h.name.clone())
            .filter(|name| !name.is_empty());
        let given = self.name.clone().or(of_capture);
        let cycles = self.cycles.or(header.map(|h| h.cycles)).unwrap_or(0);
        let stream = DeviceStream {
            id,
            name: given.unwrap_or_else(|| format!("replay {}", self.path.display())),
            device: 0,
            card: self.card.or(header.map(|h| h.card)).unwrap_or(0),
            gt: self.gt.or(header.map(|h| h.gt)).unwrap_or(0),
            relative: layout.relative(),
            cycles_per_sample: cycles,
            replayed: Some(self.path.display().to_string()),
        };
        let shape = Shape {
            layout,
            record_size: header.map_or(RECORD_SIZE, |h| h.record_size.into()),
            base: self.base.or(header.and_then(|h| h.base)),
        };
        Some((stream, shape))
    }
}
