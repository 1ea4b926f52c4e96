//! The CSV of unitrace's `--stall-sampling`: stall counts by kernel and instruction.
//!
//! The format of Intel's unitrace 2.3, for the tools that read it (`analyzeperfmetrics.py`
//! and others). It has a section per device, columns padded to the widest, kernel names in
//! quotes, offsets in hexadecimal without `0x`. It has no place for call stacks, source
//! lines and names of devices. A device here is a part that is sampled by itself, such as a
//! GT.

use super::{ExportError, names, text};
use aiprof_model::profile::{Profile, StallReason, StallTable, StalledDevice};
use std::io::{BufWriter, Write};

/// The columns of counts: unitrace's names, in its order.
pub(crate) const COLUMNS: [(&str, StallReason); 10] = [
    ("Active[Events]", StallReason::Active),
    // Xe2 and later have it; it is left out where it is 0 throughout.
    ("PSDepStall[Events]", StallReason::Tdr),
    ("ControlStall[Events]", StallReason::Control),
    ("PipeStall[Events]", StallReason::PipeStall),
    ("SendStall[Events]", StallReason::Send),
    ("DistStall[Events]", StallReason::DistAcc),
    ("SbidStall[Events]", StallReason::Sbid),
    ("SyncStall[Events]", StallReason::Sync),
    ("InstrFetchStall[Events]", StallReason::InstFetch),
    ("OtherStall[Events]", StallReason::Other),
];

/// Name of the column of kernels.
pub const KERNEL: &str = "Kernel";

/// Name of the column of offsets.
pub const IP: &str = "IP[Address]";

/// Writes the stalls of a profile; of one without any, nothing.
///
/// # Errors
///
/// [`ExportError::Io`] when `out` fails.
pub fn write(profile: &Profile, out: &mut dyn Write) -> Result<(), ExportError> {
    write_table(&StallTable::of(profile), out)
}

/// Writes a table of stalls.
///
/// # Errors
///
/// [`ExportError::Io`] when `out` fails.
pub(crate) fn write_table(table: &StallTable, out: &mut dyn Write) -> Result<(), ExportError> {
    let mut out = BufWriter::with_capacity(1 << 16, out);
    for (number, device) in table.devices.iter().enumerate() {
        write!(out, "\n=== Device #{number} Metrics ===\n\n")?;
        write_device(device, &mut out)?;
    }
    out.flush()?;
    Ok(())
}

fn write_device(device: &StalledDevice, out: &mut dyn Write) -> Result<(), ExportError> {
    let has_tdr = device
        .rows
        .iter()
        .any(|row| row.counts[StallReason::Tdr as usize] > 0);
    let columns: Vec<_> = COLUMNS
        .into_iter()
        .filter(|(_, reason)| has_tdr || *reason != StallReason::Tdr)
        .collect();
    let quoted = |kernel: &str| match text::one_line(kernel).as_str() {
        "" => format!("\"{}\"", names::UNKNOWN),
        name => format!("\"{name}\""),
    };
    let names = device.rows.iter().map(|row| quoted(&row.kernel));
    let width = names.map(|name| name.chars().count()).max().unwrap_or(0);

    write!(out, "{KERNEL:>width$}, {IP}")?;
    for (name, _) in &columns {
        write!(out, ", {name}")?;
    }
    writeln!(out)?;
    for row in &device.rows {
        let ip = format!("{:x}", row.offset);
        write!(out, "{:>width$}, {ip:>1$}", quoted(&row.kernel), IP.len())?;
        for (name, reason) in &columns {
            write!(out, ", {:>1$}", row.counts[*reason as usize], name.len())?;
        }
        writeln!(out)?;
    }
    Ok(())
}
