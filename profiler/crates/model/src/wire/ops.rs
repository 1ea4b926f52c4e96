//! Operators of PyTorch, as events.
//!
//! A program reports the operators that it ran in a window of time after that window. So
//! the events of a window come behind the samples that were taken in it.

use serde::{Deserialize, Serialize};

/// Most spans in one event: a window has several events.
pub const MAX_SPANS: usize = 256;

/// News about the operators of a process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ops {
    /// When it was known, CLOCK_MONOTONIC nanoseconds.
    pub time_ns: u64,
    /// Process id in the root pid namespace.
    pub pid: u32,
    /// What is known.
    pub news: OpsNews,
}

/// The kinds of [`Ops`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum OpsNews {
    /// The process was asked for a window of operators.
    Asked,
    /// A part of its answer.
    Recorded(OpsPart),
    /// Its answer did not come.
    Unanswered,
    /// Its answer could not be read.
    Unreadable,
}

/// A part of a window.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpsPart {
    /// Names and shapes that the spans refer to.
    pub texts: Vec<String>,
    /// The spans, in no order.
    pub spans: Vec<OpSpan>,
    /// Spans left out: of no known thread, of impossible times, or too many.
    pub refused: u64,
    /// Nothing follows of this window.
    pub is_last: bool,
}

/// The operators that a program recorded in a window.
#[derive(Debug, Default)]
pub struct OpsRead {
    /// The spans, in parts; at least one, and the last is marked.
    pub parts: Vec<OpsPart>,
    /// Spans in all.
    pub spans: u64,
    /// Spans left out: of no known thread, of impossible times, or more than a window may have.
    pub refused: u64,
}

impl OpsPart {
    /// A text that a span refers to; empty if there is none of this number.
    pub fn text(&self, number: u32) -> &str {
        self.texts.get(number as usize).map_or("", String::as_str)
    }
}

/// What an [`OpSpan`] is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum OpKind {
    /// An operator of PyTorch, as `aten::mm` (Kineto's `cpu_op`).
    Operator,
    /// What the program marked: `record_function`, `ProfilerStep`, an optimizer's step
    /// (Kineto's `user_annotation`).
    Annotation,
}

impl OpKind {
    /// The category in Kineto's traces.
    pub fn category(self) -> &'static str {
        match self {
            Self::Operator => "cpu_op",
            Self::Annotation => "user_annotation",
        }
    }

    /// The kind of a category; `None`: neither of these.
    pub fn of_category(category: &str) -> Option<Self> {
        [Self::Operator, Self::Annotation]
            .into_iter()
            .find(|kind| kind.category() == category)
    }
}

/// An operator's run on a thread.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpSpan {
    /// Thread id in the root pid namespace.
    pub tid: u32,
    /// Its kind.
    pub kind: OpKind,
    /// Its name, in [`OpsPart::texts`].
    pub name: u32,
    /// Shapes of its inputs as JSON, in [`OpsPart::texts`].
    pub shapes: Option<u32>,
    /// Begin, CLOCK_MONOTONIC nanoseconds.
    pub begin_ns: u64,
    /// Length in nanoseconds.
    pub length_ns: u64,
    /// Autograd's number: a forward operator and its backward share it.
    pub sequence: Option<u64>,
    /// For a backward operator: PyTorch's own number of the thread that ran the forward
    /// one.
    pub forward_thread: Option<u64>,
}

impl OpSpan {
    /// End, CLOCK_MONOTONIC nanoseconds.
    pub fn end_ns(&self) -> u64 {
        self.begin_ns.saturating_add(self.length_ns)
    }
}
