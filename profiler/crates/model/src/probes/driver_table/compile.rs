//! From an [`Ioctl`] to what the kernel side runs, and to the [`Probe`] that
//! travels with the events.

use super::field::hex;
use super::{Array, DriverTable, Ioctl};
use crate::probes::expr::{Count, Expr, Place, Type, ValuePart};
use crate::probes::ioctl::{Action, ArrayLayout, IoctlLayout};
use crate::probes::program::{Compiler, Field, ProbeProgram, operation};
use crate::probes::table::Compiled;
use crate::probes::{CallKind, DataFormat, Probe, ResultKind, ValueFormat};
use aiprof_common::{
    FETCH_BYTES, FetchOp, SPEC_EXIT, SPEC_KEEP, SPEC_KERNEL_STACK, SPEC_STACK, SPEC_WORK,
};

impl DriverTable {
    /// What one of the table's commands becomes.
    pub fn compile(&self, ioctl: &Ioctl) -> Compiled {
        // Checked when the table was read.
        let program = ioctl.program().unwrap_or_default();
        let mut flags = SPEC_EXIT | SPEC_KEEP;
        if ioctl.action.wants_stack() {
            flags |= SPEC_STACK | SPEC_KERNEL_STACK;
        }
        if ioctl.action.kind().is_work() {
            flags |= SPEC_WORK;
        }
        let probe = Probe {
            id: 0,
            table: self.name.clone(),
            api: self.api.clone(),
            function: ioctl.name.clone(),
            kind: ioctl.action.kind(),
            role: None,
            is_ioctl: true,
            values: program.values.clone(),
            data: program.data.clone(),
            result: ioctl.result,
            has_exit: true,
            layout: Some(Box::new(IoctlLayout {
                action: ioctl.action,
                names: ioctl.names.clone(),
                arrays: program.arrays.clone(),
            })),
        };
        Compiled::new(&program, &ioctl.name, flags, probe)
    }

    /// What any command becomes that the table does not list: its number and its argument
    /// are read.
    pub fn compile_other(&self) -> Compiled {
        let field = |name: &str, argument, size| Field {
            name: name.into(),
            text: String::new(),
            expr: Expr {
                ty: (ValueFormat::Hex, size).into(),
                ..hex(Place::Argument(argument, ValuePart::Whole))
            },
        };
        let mut compiled = self.compile(&Ioctl {
            name: format!("{} ioctl", self.name),
            args: vec![field("command", 1, 4), field("argument", 2, 8)],
            result: ResultKind::Errno,
            ..Ioctl::default()
        });
        compiled.probe.layout = None;
        compiled
    }
}

impl Ioctl {
    /// The operations, or why there cannot be such.
    pub(super) fn program(&self) -> Result<ProbeProgram, String> {
        let mut compiler = Compiler::of_ioctl();
        compiler.once(&self.args)?;
        for array in &self.arrays {
            compiler.array(array)?;
        }
        compiler.at_exit = true;
        compiler.once(&self.out)?;
        Ok(compiler.program)
    }
}

impl Compiler {
    /// Reads fields, each of which needs a name of its own.
    fn once(&mut self, fields: &[Field]) -> Result<(), String> {
        for field in fields {
            let ProbeProgram { values, data, .. } = &self.program;
            let known = values.iter().any(|v| v.name == field.name);
            if known || data.iter().any(|d| d.name == field.name) {
                return Err(format!("value `{}` is defined twice", field.name));
            }
            self.field(field)?;
        }
        Ok(())
    }

    fn array(&mut self, array: &Array) -> Result<(), String> {
        let (Some(start), Some(_)) = (array.pointer.offset(), array.count.offset()) else {
            return Err("an array's address and count must be members of the argument".into());
        };
        let Expr { ty, at } = &array.count.expr;
        let Type::Scalar { size, .. } = *ty else {
            return Err("an array's count must be a number".into());
        };
        let (from, index) = self.base(&array.pointer.expr.at.place)?;
        let at = at.place.clone();
        let count = self.count(&Count { size, at })?;
        if array.in_place {
            let fields: Vec<_> = array.fields.iter().map(|f| moved(f, start)).collect();
            self.once(&fields)?;
        }
        let op = FetchOp {
            count,
            unit: array.stride,
            ..operation(from, index, FETCH_BYTES, 0, 0)
        };
        let tag = self.push_data(op, &array.name, DataFormat::Blob)?;
        self.program.arrays.push(ArrayLayout {
            tag,
            count,
            in_place: array.in_place,
            stride: u16::from(array.stride),
            fields: array.fields.iter().filter_map(Field::element).collect(),
        });
        Ok(())
    }
}

/// A field of the element that lies where the array's address would be.
fn moved(field: &Field, start: u16) -> Field {
    let mut field = field.clone();
    if let Place::Read(address) = &mut field.expr.at.place {
        address.offset += i32::from(start);
    }
    field
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
