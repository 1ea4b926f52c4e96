//! The messages of an `XSpace` (github.com/openxla/xla, tsl/profiler/protobuf/xplane.proto) that
//! are read, written by hand. Texts are bytes: one bad byte must not cost a plane.

/// `XPlane`: a device, or the host.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Plane {
    #[prost(bytes = "vec", tag = "2")]
    pub name: Vec<u8>,
    #[prost(message, repeated, tag = "3")]
    pub lines: Vec<Line>,
    /// Entries of a map from numbers to names of events.
    #[prost(message, repeated, tag = "4")]
    pub events: Vec<NamedEntry>,
    /// The same for statistics.
    #[prost(message, repeated, tag = "5")]
    pub stats: Vec<NamedEntry>,
}

/// An entry of `XPlane.event_metadata` or `stat_metadata`.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub(super) struct NamedEntry {
    #[prost(int64, tag = "1")]
    pub key: i64,
    #[prost(message, optional, tag = "2")]
    pub value: Option<NamedMetadata>,
}

/// `XEventMetadata` and `XStatMetadata`.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub(super) struct NamedMetadata {
    #[prost(bytes = "vec", tag = "2")]
    pub name: Vec<u8>,
    /// Only events have one: what statistics have here is a description.
    #[prost(bytes = "vec", tag = "4")]
    pub display: Vec<u8>,
}

/// `XLine`: a thread, a stream, or a row made of others.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Line {
    #[prost(int64, tag = "1")]
    pub id: i64,
    #[prost(bytes = "vec", tag = "2")]
    pub name: Vec<u8>,
    #[prost(int64, tag = "3")]
    pub timestamp_ns: i64,
    #[prost(message, repeated, tag = "4")]
    pub events: Vec<XEvent>,
    #[prost(int64, tag = "10")]
    pub display_id: i64,
    #[prost(bytes = "vec", tag = "11")]
    pub display_name: Vec<u8>,
}

/// `XEvent`.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct XEvent {
    #[prost(int64, tag = "1")]
    pub metadata_id: i64,
    /// Picoseconds since the line's begin; `None`: the event is a count of others.
    #[prost(int64, optional, tag = "2")]
    pub offset_ps: Option<i64>,
    #[prost(int64, tag = "3")]
    pub duration_ps: i64,
    #[prost(message, repeated, tag = "4")]
    pub stats: Vec<Stat>,
    #[prost(int64, optional, tag = "5")]
    pub occurrences: Option<i64>,
}

/// `XStat`: an argument.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Stat {
    #[prost(int64, tag = "1")]
    pub metadata_id: i64,
    #[prost(double, optional, tag = "2")]
    pub double: Option<f64>,
    #[prost(uint64, optional, tag = "3")]
    pub uint: Option<u64>,
    #[prost(int64, optional, tag = "4")]
    pub int: Option<i64>,
    #[prost(bytes = "vec", optional, tag = "5")]
    pub text: Option<Vec<u8>>,
    /// A text that is the name of a statistic.
    #[prost(uint64, optional, tag = "7")]
    pub reference: Option<u64>,
}
