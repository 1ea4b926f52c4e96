//! The messages of pprof's `profile.proto`
//! (github.com/google/pprof/proto/profile.proto), written by hand so that
//! building needs no protoc.
//!
//! Strings are indices into [`PprofProfile::string_table`], whose first entry is
//! empty. Ids start at 1; 0 means none.

/// A profile: the outermost message.
#[derive(Clone, PartialEq, prost::Message)]
pub struct PprofProfile {
    /// What each of a sample's values means.
    #[prost(message, repeated, tag = "1")]
    pub sample_type: Vec<PprofValueType>,
    /// The samples.
    #[prost(message, repeated, tag = "2")]
    pub sample: Vec<PprofSample>,
    /// Binaries; the first is taken for the main one.
    #[prost(message, repeated, tag = "3")]
    pub mapping: Vec<PprofMapping>,
    /// Code addresses.
    #[prost(message, repeated, tag = "4")]
    pub location: Vec<PprofLocation>,
    /// Functions.
    #[prost(message, repeated, tag = "5")]
    pub function: Vec<PprofFunction>,
    /// All strings; the first is empty.
    #[prost(string, repeated, tag = "6")]
    pub string_table: Vec<String>,
    /// Start, nanoseconds since the Unix epoch.
    #[prost(int64, tag = "9")]
    pub time_nanos: i64,
    /// Length in nanoseconds.
    #[prost(int64, tag = "10")]
    pub duration_nanos: i64,
    /// What lies between two samples.
    #[prost(message, optional, tag = "11")]
    pub period_type: Option<PprofValueType>,
    /// How much of it.
    #[prost(int64, tag = "12")]
    pub period: i64,
    /// Free text: indices of strings.
    #[prost(int64, repeated, tag = "13")]
    pub comment: Vec<i64>,
    /// Name of the sample type to show first.
    #[prost(int64, tag = "14")]
    pub default_sample_type: i64,
}

/// Meaning and unit of a value.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct PprofValueType {
    /// Name.
    #[prost(int64, tag = "1")]
    pub r#type: i64,
    /// Unit.
    #[prost(int64, tag = "2")]
    pub unit: i64,
}

/// One call stack with its values and labels.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct PprofSample {
    /// Ids of locations, leaf first.
    #[prost(uint64, repeated, tag = "1")]
    pub location_id: Vec<u64>,
    /// One value per sample type.
    #[prost(int64, repeated, tag = "2")]
    pub value: Vec<i64>,
    /// What else is known.
    #[prost(message, repeated, tag = "3")]
    pub label: Vec<PprofLabel>,
}

/// A key with a string or a number.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct PprofLabel {
    /// Name of the label.
    #[prost(int64, tag = "1")]
    pub key: i64,
    /// String value, 0 if it is a number.
    #[prost(int64, tag = "2")]
    pub str: i64,
    /// Number value.
    #[prost(int64, tag = "3")]
    pub num: i64,
    /// Unit of the number.
    #[prost(int64, tag = "4")]
    pub num_unit: i64,
}

/// A binary.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct PprofMapping {
    /// Id, not 0.
    #[prost(uint64, tag = "1")]
    pub id: u64,
    /// First address.
    #[prost(uint64, tag = "2")]
    pub memory_start: u64,
    /// First address after it.
    #[prost(uint64, tag = "3")]
    pub memory_limit: u64,
    /// Offset of the first address in the file.
    #[prost(uint64, tag = "4")]
    pub file_offset: u64,
    /// Path.
    #[prost(int64, tag = "5")]
    pub filename: i64,
    /// Build id in hexadecimal.
    #[prost(int64, tag = "6")]
    pub build_id: i64,
    /// Its locations have functions: pprof need not look for symbols.
    #[prost(bool, tag = "7")]
    pub has_functions: bool,
    /// They have file names, where known.
    #[prost(bool, tag = "8")]
    pub has_filenames: bool,
    /// They have line numbers, where known.
    #[prost(bool, tag = "9")]
    pub has_line_numbers: bool,
    /// They have inlined functions, where known.
    #[prost(bool, tag = "10")]
    pub has_inline_frames: bool,
}

/// A code address.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct PprofLocation {
    /// Id, not 0.
    #[prost(uint64, tag = "1")]
    pub id: u64,
    /// Binary, 0 if none.
    #[prost(uint64, tag = "2")]
    pub mapping_id: u64,
    /// Address.
    #[prost(uint64, tag = "3")]
    pub address: u64,
    /// Functions at this address, the innermost inlined one first.
    #[prost(message, repeated, tag = "4")]
    pub line: Vec<PprofLine>,
}

/// A line of a function.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct PprofLine {
    /// Function.
    #[prost(uint64, tag = "1")]
    pub function_id: u64,
    /// Line in its file, 0 if not known.
    #[prost(int64, tag = "2")]
    pub line: i64,
}

/// A function.
#[derive(Clone, Copy, PartialEq, Eq, Hash, prost::Message)]
pub struct PprofFunction {
    /// Id, not 0.
    #[prost(uint64, tag = "1")]
    pub id: u64,
    /// Name for people.
    #[prost(int64, tag = "2")]
    pub name: i64,
    /// Name in the symbol table.
    #[prost(int64, tag = "3")]
    pub system_name: i64,
    /// Source file.
    #[prost(int64, tag = "4")]
    pub filename: i64,
}
