//! From expressions to the operations of a [`ProbeSpec`].

use super::expr::{Address, Count, Expr, Place, Type, ValuePart};
use super::ioctl::ArrayLayout;
use super::{DataFormat, DataInfo, ValueFormat, ValueInfo};
use aiprof_common::{
    FETCH_BLOB, FETCH_BYTES, FETCH_READ, FETCH_TEXT, FETCH_VALUE, FROM_ARGUMENT, FROM_RESULT,
    FROM_STACK, FROM_VALUE, FetchOp, MAX_OPS, MAX_VALUES, ProbeSpec,
};

/// Bytes of a register, a stack slot, a pointer.
const WORD: u8 = 8;
/// Most data of one call; their tags are its indices.
const MAX_DATA: usize = 8;

/// A value or data that a call of a function or an ioctl passes or returns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Field {
    /// Its name.
    pub name: String,
    /// How it is read, as the table writes it.
    pub text: String,
    /// The same, parsed.
    pub expr: Expr,
}

/// What the probe of a function or an ioctl reads.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProbeProgram {
    /// Operations at the entry.
    pub entry: Vec<FetchOp>,
    /// Operations at the exit.
    pub exit: Vec<FetchOp>,
    /// The values, by slot. One without a name is a step on the way to others.
    pub values: Vec<ValueInfo>,
    /// The data, by tag.
    pub data: Vec<DataInfo>,
    /// Which data are arrays of structures: of ioctls.
    pub arrays: Vec<ArrayLayout>,
    /// Whether the exit needs values of the entry.
    pub keep: bool,
}

impl ProbeProgram {
    /// Compiles the values read at the entry and those read at the exit.
    ///
    /// # Errors
    /// The index of the field (of `args`, then of `out`) and what is wrong with it.
    pub fn new(args: &[Field], out: &[Field]) -> Result<Self, (usize, String)> {
        let mut compiler = Compiler::default();
        for (index, field) in args.iter().chain(out).enumerate() {
            compiler.at_exit = index >= args.len();
            compiler.field(field).map_err(|message| (index, message))?;
        }
        Ok(compiler.program)
    }

    /// Whether the entry reads memory that may not be resident.
    pub fn entry_sleeps(&self) -> bool {
        self.sleeps(&self.entry)
    }

    /// Whether the exit reads memory that may not be resident.
    pub(crate) fn exit_sleeps(&self) -> bool {
        self.sleeps(&self.exit)
    }

    /// For the kernel side, as the function with this number. The operations were checked to
    /// fit when they were compiled.
    pub(super) fn spec(&self, function: u32, flags: u32) -> ProbeSpec {
        let mut ops = [FetchOp::default(); MAX_OPS];
        for (to, from) in ops.iter_mut().zip(self.entry.iter().chain(&self.exit)) {
            *to = *from;
        }
        let count = |n: usize| u8::try_from(n).unwrap_or(u8::MAX);
        let of_values = |op: &&FetchOp| matches!(op.how, FETCH_VALUE | FETCH_READ);
        let slots = self.exit.iter().filter(of_values);
        ProbeSpec {
            function,
            flags,
            n_entry: count(self.entry.len()),
            n_exit: count(self.exit.len()),
            n_values: count(self.values.len()),
            pad: 0,
            exit_slots: slots.fold(0, |bits, op| {
                bits | 1_u16.checked_shl(op.to.into()).unwrap_or(0)
            }),
            pad2: 0,
            ops,
        }
    }

    /// Arrays of handles are written right before the call and are resident; texts
    /// and code may never have been touched.
    fn sleeps(&self, ops: &[FetchOp]) -> bool {
        ops.iter().any(|op| match op.how {
            FETCH_TEXT | FETCH_BLOB => true,
            FETCH_BYTES => op.unit == 1,
            _ => false,
        })
    }
}

/// Makes a [`ProbeProgram`], field by field.
#[derive(Default)]
pub(super) struct Compiler {
    /// What was compiled so far.
    pub(super) program: ProbeProgram,
    /// Fields are read at the exit.
    pub(super) at_exit: bool,
    /// The arguments of an ioctl are known at the exit, too.
    is_ioctl: bool,
    /// What each operation on the way reads, and the slot it went to.
    steps: Vec<(FetchStep, u8)>,
}

/// An operation without its destination: two equal ones read the same.
type FetchStep = (bool, FetchOp);

/// What a place is a base of: `from` and `index` of an operation.
type Base = (u8, u8);

impl Compiler {
    /// For the argument of an ioctl.
    pub(super) fn of_ioctl() -> Self {
        Self {
            is_ioctl: true,
            ..Self::default()
        }
    }

    /// Reads a field into a slot or as data.
    pub(super) fn field(&mut self, field: &Field) -> Result<(), String> {
        let Expr { ty, at } = &field.expr;
        if let Type::Scalar { format, size } = ty {
            let op = self.scalar(&at.place, *size)?;
            let slot = self.slot(&field.name, *format)?;
            return self.push(FetchOp { to: slot, ..op }).map(|()| {
                self.remember(op, slot);
            });
        }
        let op = self.data_op(ty, at)?;
        let format = ty.data_format().unwrap_or(DataFormat::Blob);
        self.push_data(op, &field.name, format).map(|_| ())
    }

    /// Adds data that `op` reads; gives their tag.
    pub(super) fn push_data(
        &mut self,
        op: FetchOp,
        name: &str,
        format: DataFormat,
    ) -> Result<u8, String> {
        let data = &mut self.program.data;
        let tag = u8::try_from(data.len()).unwrap_or(u8::MAX);
        if usize::from(tag) >= MAX_DATA {
            return Err(format!("too many texts and arrays (limit: {MAX_DATA})"));
        }
        data.push(DataInfo {
            name: name.to_owned(),
            format,
        });
        self.push(FetchOp { to: tag, ..op }).map(|()| tag)
    }

    fn data_op(&mut self, ty: &Type, at: &Address) -> Result<FetchOp, String> {
        let (how, count, unit) = match ty {
            Type::Handles(count) => (FETCH_BYTES, Some(count), WORD),
            Type::Bytes(count) => (FETCH_BYTES, Some(count), 1),
            Type::Blob(count) => (FETCH_BLOB, Some(count), 1),
            Type::Text | Type::Scalar { .. } => (FETCH_TEXT, None, 0),
        };
        let count = count.map_or(Ok(0), |count| self.count(count))?;
        let (from, index) = self.base(&at.place)?;
        Ok(FetchOp {
            count,
            unit,
            ..operation(from, index, how, 0, at.offset)
        })
    }

    /// The slot of a count.
    pub(super) fn count(&mut self, count: &Count) -> Result<u8, String> {
        if let Place::Named(name) = &count.at {
            return self.named(name);
        }
        if self.is_past_arguments()
            && let Place::Argument(n, ValuePart::Whole) = count.at
        {
            return self.kept_argument(n);
        }
        let op = self.scalar(&count.at, count.size)?;
        self.step(op, self.at_exit)
    }

    /// The operation that reads a number of `size` bytes.
    fn scalar(&mut self, place: &Place, size: u8) -> Result<FetchOp, String> {
        if self.is_past_arguments() && matches!(place, Place::Argument(..) | Place::Stack(..)) {
            return Err("arguments can be read only at the entry: move this to `args`".into());
        }
        let shift = |part| if part == ValuePart::High { 32 } else { 0 };
        let ((from, index), how, offset, shift) = match place {
            Place::Argument(n, part) => ((FROM_ARGUMENT, *n), FETCH_VALUE, 0, shift(*part)),
            Place::Result(part) => {
                self.result_is_known()?;
                ((FROM_RESULT, 0), FETCH_VALUE, 0, shift(*part))
            }
            Place::Stack(n, part) => {
                let offset = stack_offset(*n) + i32::from(shift(*part) / 8);
                ((FROM_STACK, 0), FETCH_READ, offset, 0)
            }
            Place::Read(address) => (self.base(&address.place)?, FETCH_READ, address.offset, 0),
            Place::Named(name) => {
                return Err(format!(
                    "`{name}` is an earlier value: use it as an address or as a count"
                ));
            }
        };
        Ok(FetchOp {
            shift,
            ..operation(from, index, how, size, offset)
        })
    }

    /// What `place` is as an address to read at.
    pub(super) fn base(&mut self, place: &Place) -> Result<Base, String> {
        match place {
            Place::Argument(_, ValuePart::Low | ValuePart::High)
            | Place::Stack(_, ValuePart::Low | ValuePart::High)
            | Place::Result(ValuePart::Low | ValuePart::High) => {
                Err("half an argument is not an address".into())
            }
            Place::Argument(n, ValuePart::Whole) if self.is_past_arguments() => {
                Ok((FROM_VALUE, self.kept_argument(*n)?))
            }
            Place::Argument(n, ValuePart::Whole) => Ok((FROM_ARGUMENT, *n)),
            Place::Stack(n, ValuePart::Whole) => {
                let op = operation(FROM_STACK, 0, FETCH_READ, WORD, stack_offset(*n));
                Ok((FROM_VALUE, self.entry_step(op)?))
            }
            Place::Result(ValuePart::Whole) => {
                self.result_is_known()?;
                Ok((FROM_RESULT, 0))
            }
            Place::Named(name) => {
                let slot = self.named(name)?;
                let ops = self.program.entry.iter().chain(&self.program.exit);
                let is_value = |op: &&FetchOp| matches!(op.how, FETCH_VALUE | FETCH_READ);
                match ops.filter(is_value).find(|op| op.to == slot) {
                    Some(op) if op.size == WORD => Ok((FROM_VALUE, slot)),
                    _ => Err(format!(
                        "`{name}` has fewer than 8 bytes, so it is not an address"
                    )),
                }
            }
            Place::Read(address) => {
                let (from, index) = self.base(&address.place)?;
                let op = operation(from, index, FETCH_READ, WORD, address.offset);
                Ok((FROM_VALUE, self.step(op, self.at_exit)?))
            }
        }
    }

    /// Whether arguments can no longer be read.
    fn is_past_arguments(&self) -> bool {
        self.at_exit && !self.is_ioctl
    }

    fn result_is_known(&self) -> Result<(), String> {
        if self.at_exit {
            return Ok(());
        }
        Err("the result is known only at the exit: move this to `out`".into())
    }

    /// The slot of an earlier value.
    fn named(&mut self, name: &str) -> Result<u8, String> {
        let values = &self.program.values;
        let Some(slot) = values.iter().position(|value| value.name == name) else {
            let known: Vec<_> = values
                .iter()
                .map(|v| v.name.as_str())
                .filter(|n| !n.is_empty())
                .collect();
            return Err(format!(
                "no earlier value is named `{name}`; earlier values: {}",
                known.join(", ")
            ));
        };
        self.program.keep |= self.at_exit && !values.get(slot).is_some_and(|v| v.at_exit);
        u8::try_from(slot).map_err(|_| "too many values".into())
    }

    fn kept_argument(&mut self, n: u8) -> Result<u8, String> {
        self.entry_step(operation(FROM_ARGUMENT, n, FETCH_VALUE, WORD, 0))
    }

    /// A step of the entry, kept if it is the exit that needs it.
    fn entry_step(&mut self, op: FetchOp) -> Result<u8, String> {
        self.program.keep |= self.at_exit;
        self.step(op, false)
    }

    /// The slot that holds what `op` reads; a new one unless it is known.
    fn step(&mut self, op: FetchOp, at_exit: bool) -> Result<u8, String> {
        if let Some((_, slot)) = self.steps.iter().find(|(step, _)| *step == (at_exit, op)) {
            return Ok(*slot);
        }
        let now = std::mem::replace(&mut self.at_exit, at_exit);
        let slot = self.slot("", ValueFormat::Hex);
        let pushed = slot.and_then(|to| self.push(FetchOp { to, ..op }).map(|()| to));
        if let Ok(slot) = pushed {
            self.remember(op, slot);
        }
        self.at_exit = now;
        pushed
    }

    fn remember(&mut self, op: FetchOp, slot: u8) {
        self.steps.push(((self.at_exit, op), slot));
    }

    fn slot(&mut self, name: &str, format: ValueFormat) -> Result<u8, String> {
        let slot = self.program.values.len();
        if slot >= MAX_VALUES {
            let hint = match self.is_ioctl {
                true => "",
                false => ": a pointer that leads to a value is one, too",
            };
            return Err(format!("too many values (limit: {MAX_VALUES}){hint}"));
        }
        self.program.values.push(ValueInfo {
            name: name.to_owned(),
            format,
            at_exit: self.at_exit,
        });
        u8::try_from(slot).map_err(|_| "too many values".into())
    }

    fn push(&mut self, op: FetchOp) -> Result<(), String> {
        let program = &mut self.program;
        if program.entry.len() + program.exit.len() >= MAX_OPS {
            let what = match self.is_ioctl {
                true => "values and texts to read",
                false => "values, texts and pointers",
            };
            return Err(format!("too many {what} (limit: {MAX_OPS})"));
        }
        if self.at_exit {
            program.exit.push(op);
        } else {
            program.entry.push(op);
        }
        Ok(())
    }
}

/// An operation without its destination.
pub(super) fn operation(from: u8, index: u8, how: u8, size: u8, offset: i32) -> FetchOp {
    FetchOp {
        from,
        index,
        how,
        size,
        offset,
        ..FetchOp::default()
    }
}

/// The first argument on the stack is above the return address.
fn stack_offset(n: u8) -> i32 {
    i32::from(WORD) * (1 + i32::from(n))
}
