//! From an [`Ioctl`] to what the kernel side runs, and to the [`Probe`] that
//! travels with the events.

use super::field::{Field, Member, Place, Type};
use super::{Array, DriverTable, Ioctl};
use crate::probes::ioctl::{Action, ArrayLayout, ElementField, IoctlLayout};
use crate::probes::table::function_id;
use crate::probes::{CallKind, DataFormat, DataInfo, Probe, ResultKind, ValueFormat, ValueInfo};
use aiprof_common::{
    FETCH_BYTES, FETCH_READ, FETCH_TEXT, FETCH_VALUE, FROM_ARGUMENT, FROM_VALUE, FetchOp, MAX_OPS,
    MAX_VALUES, ProbeSpec, SPEC_EXIT, SPEC_KEEP, SPEC_KERNEL_STACK, SPEC_STACK, SPEC_WORK,
};

/// Which argument of ioctl(2) is the command's own.
const ARGUMENT: u8 = 2;

/// What a command becomes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Compiled {
    /// For the kernel side.
    pub spec: ProbeSpec,
    /// For the reader; its id is 0 until it is registered.
    pub probe: Probe,
}

/// The operations of a command.
#[derive(Clone, Debug, Default)]
pub(super) struct Program {
    entry: Vec<FetchOp>,
    exit: Vec<FetchOp>,
    values: Vec<ValueInfo>,
    data: Vec<DataInfo>,
    arrays: Vec<ArrayLayout>,
}

impl DriverTable {
    /// What one of the table's commands becomes.
    pub fn compile(&self, ioctl: &Ioctl) -> Compiled {
        // Checked when the table was read.
        let program = ioctl.program().unwrap_or_default();
        let action = ioctl.action.unwrap_or(Action::Other);
        let mut flags = SPEC_EXIT | SPEC_KEEP;
        if action.wants_stack() {
            flags |= SPEC_STACK | SPEC_KERNEL_STACK;
        }
        if action.kind().is_work() {
            flags |= SPEC_WORK;
        }
        Compiled {
            spec: program.spec(function_id(&ioctl.name), flags),
            probe: Probe {
                id: 0,
                table: self.name.clone(),
                api: self.api.clone(),
                function: ioctl.name.clone(),
                kind: action.kind(),
                role: None,
                is_ioctl: true,
                values: program.values,
                data: program.data,
                result: ioctl.result.unwrap_or(ResultKind::Errno),
                has_exit: true,
                layout: Some(Box::new(IoctlLayout {
                    action,
                    names: ioctl.names.clone(),
                    arrays: program.arrays,
                })),
            },
        }
    }
}

impl Ioctl {
    /// The operations, or why there cannot be such.
    pub(super) fn program(&self) -> Result<Program, String> {
        let mut program = Program::default();
        for field in &self.args {
            program.field(field, false)?;
        }
        for array in &self.arrays {
            program.array(array)?;
        }
        for field in &self.out {
            program.field(field, true)?;
        }
        if program.entry.len() + program.exit.len() > MAX_OPS {
            return Err(format!(
                "too many values and texts to read (limit: {MAX_OPS})"
            ));
        }
        Ok(program)
    }
}

impl Program {
    /// Reads a field into a slot.
    fn field(&mut self, field: &Field, at_exit: bool) -> Result<(), String> {
        let known = self.values.iter().any(|v| v.name == field.name);
        if known || self.data.iter().any(|d| d.name == field.name) {
            return Err(format!("value `{}` is defined twice", field.name));
        }
        let Type::Number(size, format) = field.kind else {
            return self.text(field, at_exit);
        };
        let op = self.locate(&field.place, size, at_exit)?;
        self.value(op, &field.name, format, at_exit).map(|_| ())
    }

    fn text(&mut self, field: &Field, at_exit: bool) -> Result<(), String> {
        let to = self.datum(&field.name, DataFormat::Text)?;
        self.push(
            FetchOp {
                from: FROM_ARGUMENT,
                index: ARGUMENT,
                how: FETCH_TEXT,
                to,
                ..FetchOp::default()
            },
            at_exit,
        );
        Ok(())
    }

    /// The operation that reads `size` bytes at a place; its slot is not set yet.
    fn locate(&mut self, place: &Place, size: u8, at_exit: bool) -> Result<FetchOp, String> {
        let op = FetchOp {
            from: FROM_ARGUMENT,
            index: ARGUMENT,
            size,
            ..FetchOp::default()
        };
        Ok(match place {
            Place::Argument => FetchOp {
                how: FETCH_VALUE,
                ..op
            },
            Place::At(member) => FetchOp {
                how: FETCH_READ,
                offset: i32::from(member.offset),
                ..op
            },
            Place::Through {
                pointer, member, ..
            } => FetchOp {
                from: FROM_VALUE,
                index: self.hidden(pointer, 8, at_exit)?,
                how: FETCH_READ,
                offset: i32::from(member.offset),
                ..op
            },
        })
    }

    /// A slot with a member that has no name of its own; one that is read already
    /// serves.
    fn hidden(&mut self, member: &Member, size: u8, at_exit: bool) -> Result<u8, String> {
        let op = self.locate(&Place::At(member.clone()), size, at_exit)?;
        let ops = if at_exit { &self.exit } else { &self.entry };
        let same = ops.iter().find(|have| FetchOp { to: 0, ..**have } == op);
        match same {
            Some(have) => Ok(have.to),
            None => self.value(op, "", ValueFormat::Hex, at_exit),
        }
    }

    /// Adds a value with the operation that reads it; gives its slot.
    fn value(
        &mut self,
        op: FetchOp,
        name: &str,
        format: ValueFormat,
        at_exit: bool,
    ) -> Result<u8, String> {
        let slot = self.values.len();
        if slot == MAX_VALUES {
            return Err(format!("too many values (limit: {MAX_VALUES})"));
        }
        self.values.push(ValueInfo {
            name: name.to_owned(),
            format,
            at_exit,
        });
        // Less than MAX_VALUES.
        let to = slot as u8;
        self.push(FetchOp { to, ..op }, at_exit);
        Ok(to)
    }

    fn datum(&mut self, name: &str, format: DataFormat) -> Result<u8, String> {
        let tag = u8::try_from(self.data.len()).map_err(|_| "too many arrays".to_owned())?;
        self.data.push(DataInfo {
            name: name.to_owned(),
            format,
        });
        Ok(tag)
    }

    fn push(&mut self, op: FetchOp, at_exit: bool) {
        if at_exit {
            self.exit.push(op);
        } else {
            self.entry.push(op);
        }
    }

    fn array(&mut self, array: &Array) -> Result<(), String> {
        let (Place::At(pointer), Place::At(count)) = (&array.pointer, &array.count.place) else {
            return Err("an array's address and count must be members of the argument".into());
        };
        let Type::Number(size, _) = array.count.kind else {
            return Err("an array's count must be a number".into());
        };
        let address = self.hidden(pointer, 8, false)?;
        let count = self.hidden(count, size, false)?;
        if array.in_place {
            self.in_place(array, pointer)?;
        }
        let tag = self.datum(&array.name, DataFormat::Blob)?;
        self.push(
            FetchOp {
                from: FROM_VALUE,
                index: address,
                how: FETCH_BYTES,
                to: tag,
                count,
                unit: array.stride,
                ..FetchOp::default()
            },
            false,
        );
        self.arrays.push(ArrayLayout {
            tag,
            count,
            in_place: array.in_place,
            stride: u16::from(array.stride),
            fields: array.fields.iter().filter_map(Field::element).collect(),
        });
        Ok(())
    }

    /// The fields of the element that lies where the array's address would be.
    fn in_place(&mut self, array: &Array, at: &Member) -> Result<(), String> {
        for field in &array.fields {
            let Place::At(member) = &field.place else {
                continue;
            };
            let place = Place::At(Member {
                name: member.name.clone(),
                offset: at.offset.saturating_add(member.offset),
            });
            let moved = Field {
                place,
                ..field.clone()
            };
            self.field(&moved, false)?;
        }
        Ok(())
    }

    fn spec(&self, function: u32, flags: u32) -> ProbeSpec {
        let mut ops = [FetchOp::default(); MAX_OPS];
        for (to, from) in ops.iter_mut().zip(self.entry.iter().chain(&self.exit)) {
            *to = *from;
        }
        let count = |n: usize| u8::try_from(n).unwrap_or(u8::MAX);
        ProbeSpec {
            function,
            flags,
            n_entry: count(self.entry.len()),
            n_exit: count(self.exit.len()),
            n_values: count(self.values.len()),
            pad: 0,
            exit_slots: 0,
            pad2: 0,
            ops,
        }
    }
}

impl Field {
    /// Whether it lies in the first `bytes` of its structure.
    pub(super) fn lies_within(&self, bytes: u32) -> bool {
        match (self.kind, &self.place) {
            (Type::Number(size, _), Place::At(member)) => {
                u32::from(member.offset) + u32::from(size) <= bytes
            }
            _ => false,
        }
    }

    /// As a field of an array's elements.
    fn element(&self) -> Option<ElementField> {
        match (self.kind, &self.place) {
            (Type::Number(size, format), Place::At(member)) => Some(ElementField {
                name: self.name.clone(),
                offset: member.offset,
                size,
                format,
            }),
            _ => None,
        }
    }
}

impl Action {
    /// What calls of it do, in the words that all probes share.
    pub fn kind(self) -> CallKind {
        match self {
            Self::Submit => CallKind::Submit,
            Self::Bind => CallKind::Bind,
            Self::Unbind => CallKind::Unbind,
            Self::Alloc => CallKind::Alloc,
            Self::Free => CallKind::Free,
            Self::Copy => CallKind::Copy,
            Self::Wait => CallKind::Synchronize,
            Self::Event => CallKind::Event,
            Self::QueueCreate | Self::QueueDestroy | Self::Queue => CallKind::Queue,
            Self::VmCreate | Self::VmDestroy | Self::Context => CallKind::Context,
            Self::Map | Self::Query | Self::Other => CallKind::Host,
        }
    }

    /// Whether the stack of its calls is recorded. Calls that submit work, allocate
    /// memory or wait have one.
    fn wants_stack(self) -> bool {
        matches!(
            self,
            Self::Submit
                | Self::Bind
                | Self::Unbind
                | Self::Alloc
                | Self::Free
                | Self::Copy
                | Self::Wait
                | Self::QueueCreate
                | Self::VmCreate
        )
    }
}
