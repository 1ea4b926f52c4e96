//! One line of iaprof's text.

use super::ReasonCounts;
use aiprof_model::profile::DeviceCode;

/// The content of a line.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Record<'a> {
    /// The text of an id.
    String { id: u64, text: &'a str },
    /// What follows was counted until then.
    Interval {
        /// Seconds of CLOCK_MONOTONIC.
        end: f64,
    },
    /// A kernel, of which the counts that follow are.
    Kernel(KernelRecord),
    /// The counts of an instruction.
    Stall {
        offset: u64,
        mnemonic: u64,
        counts: ReasonCounts,
    },
    /// A number about the interval.
    Metric { name: &'a str, value: f64 },
}

/// A kernel and its latest launch; but for the numbers, ids of strings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct KernelRecord {
    pub(super) address: u64,
    pub(super) comm: u64,
    pub(super) pid: u32,
    pub(super) stack: u64,
    pub(super) file: u64,
    pub(super) symbol: u64,
}

impl<'a> Record<'a> {
    /// The record of a line without its end; `None` if it is none.
    pub(super) fn parse(line: &'a str) -> Option<Self> {
        let (kind, rest) = line.split_once('\t')?;
        match kind {
            // Nothing is escaped: a text may hold tabs.
            "string" => {
                let (id, text) = rest.split_once('\t')?;
                let id = decimal(id).filter(|id| *id > 0)?;
                Some(Self::String { id, text })
            }
            "interval" => {
                let [number, end] = fields(rest)?;
                decimal(number)?;
                let end = end.parse().ok().filter(|end: &f64| end.is_finite())?;
                Some(Self::Interval { end })
            }
            "metric" => {
                let [name, value] = fields(rest)?;
                let value = value.parse().ok()?;
                Some(Self::Metric { name, value })
            }
            "kernel" => {
                let [address, comm, pid, stack, file, symbol] = fields(rest)?;
                Some(Self::Kernel(KernelRecord {
                    address: hexadecimal(address)?,
                    comm: decimal(comm)?,
                    pid: u32::try_from(decimal(pid)?).ok()?,
                    stack: decimal(stack)?,
                    file: decimal(file)?,
                    symbol: decimal(symbol)?,
                }))
            }
            "eustall" => {
                let [offset, mnemonic, numbers @ ..] = fields::<12>(rest)?;
                let mut counts = ReasonCounts::default();
                for (count, number) in counts.iter_mut().zip(numbers) {
                    *count = decimal(number)?;
                }
                let offset = hexadecimal(offset)?;
                Some(Self::Stall {
                    offset: Some(offset).filter(|offset| *offset != DeviceCode::MANY)?,
                    mnemonic: decimal(mnemonic)?,
                    counts,
                })
            }
            _ => None,
        }
    }
}

/// Exactly `N` fields.
fn fields<const N: usize>(text: &str) -> Option<[&str; N]> {
    let mut all = text.split('\t');
    let mut fields = [""; N];
    for field in &mut fields {
        *field = all.next()?;
    }
    all.next().is_none().then_some(fields)
}

fn decimal(field: &str) -> Option<u64> {
    // `parse` alone would accept a sign.
    let is_decimal = field.bytes().all(|b| b.is_ascii_digit());
    is_decimal.then(|| field.parse().ok())?
}

fn hexadecimal(field: &str) -> Option<u64> {
    let digits = field.strip_prefix("0x")?;
    let is_hex = digits.bytes().all(|b| b.is_ascii_hexdigit());
    is_hex.then(|| u64::from_str_radix(digits, 16).ok())?
}
