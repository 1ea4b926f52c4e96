//! What an operator was called with, as PyTorch's traces have it (`record_shapes=True`).

use super::shapes;
use aiprof_model::timeline::{Event, Timeline};
use serde_json::Value;

/// A type of numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ElementType {
    /// 64 bits.
    Fp64,
    /// 32 bits.
    Fp32,
    /// 16 bits, IEEE.
    Fp16,
    /// 16 bits, bfloat16.
    Bf16,
    /// 8 bits, of any layout.
    Fp8,
    /// Integers of 64 bits.
    Int64,
    /// Integers of 32 bits.
    Int32,
    /// Integers of 16 bits.
    Int16,
    /// Integers of 8 bits, with or without sign.
    Int8,
    /// Truth values, a byte each.
    Bool,
}

/// Types with their name in traces and in tables, their number in PyTorch (`ScalarType`), and
/// their bytes.
const TYPES: [(ElementType, &str, &str, i64, u64); 12] = [
    (ElementType::Fp64, "double", "fp64", 7, 8),
    (ElementType::Fp32, "float", "fp32", 6, 4),
    (ElementType::Fp16, "c10::Half", "fp16", 5, 2),
    (ElementType::Bf16, "c10::BFloat16", "bf16", 15, 2),
    (ElementType::Int64, "long int", "int64", 4, 8),
    (ElementType::Int64, "long", "int64", 4, 8),
    (ElementType::Int32, "int", "int32", 3, 4),
    (ElementType::Int16, "short int", "int16", 2, 2),
    (ElementType::Int16, "short", "int16", 2, 2),
    (ElementType::Int8, "signed char", "int8", 1, 1),
    (ElementType::Int8, "unsigned char", "int8", 0, 1),
    (ElementType::Bool, "bool", "bool", 11, 1),
];
/// What names of types of 8 bits begin with; there are several layouts.
const FP8: &str = "c10::Float8_";
/// Numbers of types of 8 bits in PyTorch.
const FP8_NUMBERS: std::ops::RangeInclusive<i64> = 23..=26;

impl ElementType {
    fn named(name: &str) -> Option<Self> {
        if name.starts_with(FP8) {
            return Some(Self::Fp8);
        }
        let mut types = TYPES.iter();
        types.find(|one| one.1 == name).map(|one| one.0)
    }

    /// By PyTorch's number.
    pub(super) fn numbered(number: i64) -> Option<Self> {
        if FP8_NUMBERS.contains(&number) {
            return Some(Self::Fp8);
        }
        let mut types = TYPES.iter();
        types.find(|one| one.3 == number).map(|one| one.0)
    }

    /// Its name in tables.
    pub fn word(self) -> &'static str {
        let mut types = TYPES.iter();
        let known = types.find(|one| one.0 == self);
        known.map_or("fp8", |one| one.2)
    }

    /// Bytes of a number.
    pub(super) fn bytes(self) -> u64 {
        let mut types = TYPES.iter();
        let known = types.find(|one| one.0 == self);
        known.map_or(1, |one| one.4)
    }

    /// Whether its numbers have fractions.
    pub(super) fn is_float(self) -> bool {
        matches!(
            self,
            Self::Fp64 | Self::Fp32 | Self::Fp16 | Self::Bf16 | Self::Fp8
        )
    }
}

/// A tensor among the inputs.
#[derive(Clone, Copy)]
pub(super) struct Tensor<'i> {
    /// Its lengths; empty: it is one number.
    pub(super) shape: &'i [i64],
    pub(super) element: ElementType,
    /// How many numbers it has.
    pub(super) numbers: u64,
    /// Bytes that it has in memory: what is repeated by a stride of 0 counts once.
    pub(super) bytes: u64,
}

impl Tensor<'_> {
    /// Bytes of a new tensor of its numbers.
    pub(super) fn full_bytes(&self) -> Option<u64> {
        self.numbers.checked_mul(self.element.bytes())
    }
}

/// What an operator was called with. Lists have an item for each input.
pub(super) struct Inputs {
    shapes: Vec<Vec<i64>>,
    strides: Vec<Vec<i64>>,
    types: Vec<Option<ElementType>>,
    values: Vec<Value>,
}

/// The JSON of the arguments of which [`Inputs`] are made.
pub(super) type InputTexts<'t> = [Option<&'t str>; 4];

impl Inputs {
    pub(super) fn of(timeline: &Timeline, event: &Event) -> Option<Self> {
        Self::parse(Self::texts(timeline, event))
    }

    pub(super) fn texts<'t>(timeline: &'t Timeline, event: &Event) -> InputTexts<'t> {
        [
            "Input Dims",
            "Input Strides",
            "Input type",
            "Concrete Inputs",
        ]
        .map(|key| timeline.arg(event, key))
    }

    /// `None`: there are no shapes.
    pub(super) fn parse([shapes, strides, types, values]: InputTexts<'_>) -> Option<Self> {
        let list = |text: Option<&str>| -> Option<Vec<Value>> { serde_json::from_str(text?).ok() };
        let lengths = |all: Vec<Value>| {
            let all = all.iter();
            all.map(|one| shapes::numbers(one).unwrap_or_default())
                .collect()
        };
        let types = list(types).unwrap_or_default();
        let types = types.iter().map(|one| ElementType::named(one.as_str()?));
        Some(Self {
            shapes: lengths(list(shapes)?),
            strides: lengths(list(strides).unwrap_or_default()),
            types: types.collect(),
            values: list(values).unwrap_or_default(),
        })
    }

    /// The lengths of an input; `None`: it has none.
    pub(super) fn shape(&self, index: usize) -> Option<&[i64]> {
        let shape = self.shapes.get(index)?;
        (!shape.is_empty()).then_some(shape)
    }

    /// A tensor; `None`: the input is none, or its type is not known.
    pub(super) fn tensor(&self, index: usize) -> Option<Tensor<'_>> {
        let element = (*self.types.get(index)?)?;
        let shape = self.shapes.get(index)?;
        let strides = self.strides.get(index);
        let strides = strides.filter(|strides| strides.len() == shape.len());
        let is_stored = |at: usize| strides.is_none_or(|all| all.get(at) != Some(&0));
        let stored = shape.iter().enumerate().filter(|(at, _)| is_stored(*at));
        let stored: Vec<i64> = stored.map(|(_, length)| *length).collect();
        Some(Tensor {
            shape,
            element,
            numbers: size(shape)?,
            bytes: size(&stored)?.checked_mul(element.bytes())?,
        })
    }

    /// The value of an input that is no tensor; empty or `None`: it was not given or recorded.
    pub(super) fn value(&self, index: usize) -> Option<&str> {
        self.values.get(index)?.as_str()
    }

    /// Numbers that the operator was given: `"[1, 1]"`.
    pub(super) fn list(&self, index: usize) -> Option<Vec<i64>> {
        serde_json::from_str(self.value(index)?).ok()
    }

    /// Two of them.
    pub(super) fn pair(&self, index: usize) -> Option<[i64; 2]> {
        self.list(index)?.try_into().ok()
    }

    pub(super) fn number(&self, index: usize) -> Option<i64> {
        self.value(index)?.parse().ok()
    }

    /// Whether an input is `True`; `None`: that is not recorded.
    pub(super) fn is_true(&self, index: usize) -> Option<bool> {
        match self.value(index)? {
            "True" => Some(true),
            "False" => Some(false),
            _ => None,
        }
    }

    /// Whether values were recorded.
    pub(super) fn has_values(&self) -> bool {
        !self.values.is_empty()
    }
}

/// All numbers multiplied.
pub(super) fn size(shape: &[i64]) -> Option<u64> {
    let mut lengths = shape.iter().map(|length| u64::try_from(*length).ok());
    lengths.try_fold(1, |all: u64, length| all.checked_mul(length?))
}
