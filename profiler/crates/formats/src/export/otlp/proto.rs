//! The messages of OTLP profiles (github.com/open-telemetry/opentelemetry-proto,
//! `profiles/v1development/profiles.proto` of 1.11), written by hand so that building needs
//! no protoc; those fields that are written.
//!
//! Whatever ends in `index` or `indices` is a place in a table of the [`Dictionary`], whose
//! first entry is empty and means none.

/// A request to take profiles, and a file of them: both have the same fields.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ProfilesData {
    /// Profiles by what they are of.
    #[prost(message, repeated, tag = "1")]
    pub resource_profiles: Vec<ResourceProfiles>,
    /// What all of them refer to.
    #[prost(message, optional, tag = "2")]
    pub dictionary: Option<Dictionary>,
}

/// Tables that all profiles share.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Dictionary {
    /// Binaries.
    #[prost(message, repeated, tag = "1")]
    pub mapping_table: Vec<OtlpMapping>,
    /// Code addresses.
    #[prost(message, repeated, tag = "2")]
    pub location_table: Vec<OtlpLocation>,
    /// Functions.
    #[prost(message, repeated, tag = "3")]
    pub function_table: Vec<FunctionEntry>,
    /// Spans of traces: the empty one only.
    #[prost(message, repeated, tag = "4")]
    pub link_table: Vec<OtlpLink>,
    /// Strings.
    #[prost(string, repeated, tag = "5")]
    pub string_table: Vec<String>,
    /// Attributes of profiles, samples, locations and mappings.
    #[prost(message, repeated, tag = "6")]
    pub attribute_table: Vec<Attribute>,
    /// Call stacks.
    #[prost(message, repeated, tag = "7")]
    pub stack_table: Vec<OtlpStack>,
}

/// Profiles of a service on a host.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ResourceProfiles {
    /// The service.
    #[prost(message, optional, tag = "1")]
    pub resource: Option<Resource>,
    /// Its profiles.
    #[prost(message, repeated, tag = "2")]
    pub scope_profiles: Vec<ScopeProfiles>,
}

/// What profiles are of.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Resource {
    /// What is known of it.
    #[prost(message, repeated, tag = "1")]
    pub attributes: Vec<KeyValue>,
}

/// Profiles that one program made.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ScopeProfiles {
    /// The program.
    #[prost(message, optional, tag = "1")]
    pub scope: Option<OtlpScope>,
    /// The profiles.
    #[prost(message, repeated, tag = "2")]
    pub profiles: Vec<OtlpProfile>,
}

/// A program that makes profiles.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct OtlpScope {
    /// Its name.
    #[prost(string, tag = "1")]
    pub name: String,
    /// Its version.
    #[prost(string, tag = "2")]
    pub version: String,
}

/// A key that is written out, and its value.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct KeyValue {
    /// The key.
    #[prost(string, tag = "1")]
    pub key: String,
    /// The value.
    #[prost(message, optional, tag = "2")]
    pub value: Option<AnyValue>,
}

/// A value.
#[derive(Clone, PartialEq, Eq, Hash, prost::Message)]
pub struct AnyValue {
    /// Which kind it is of.
    #[prost(oneof = "AttributeValue", tags = "1, 3")]
    pub value: Option<AttributeValue>,
}

/// A value of one kind.
#[derive(Clone, PartialEq, Eq, Hash, prost::Oneof)]
pub enum AttributeValue {
    /// A text.
    #[prost(string, tag = "1")]
    Text(String),
    /// A number.
    #[prost(int64, tag = "3")]
    Number(i64),
}

/// Samples of one kind.
#[derive(Clone, PartialEq, prost::Message)]
pub struct OtlpProfile {
    /// What the values of the samples are.
    #[prost(message, optional, tag = "1")]
    pub sample_type: Option<OtlpValueType>,
    /// The samples.
    #[prost(message, repeated, tag = "2")]
    pub samples: Vec<OtlpSample>,
    /// Start, nanoseconds since the Unix epoch.
    #[prost(fixed64, tag = "3")]
    pub time_unix_nano: u64,
    /// Length in nanoseconds.
    #[prost(uint64, tag = "4")]
    pub duration_nano: u64,
    /// What lies between two samples.
    #[prost(message, optional, tag = "5")]
    pub period_type: Option<OtlpValueType>,
    /// How much of it.
    #[prost(int64, tag = "6")]
    pub period: i64,
    /// What else is known of all of it.
    #[prost(int32, repeated, tag = "11")]
    pub attribute_indices: Vec<i32>,
}

/// Meaning and unit of a value.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct OtlpValueType {
    /// Name.
    #[prost(int32, tag = "1")]
    pub type_strindex: i32,
    /// Unit.
    #[prost(int32, tag = "2")]
    pub unit_strindex: i32,
}

/// A call stack with its value.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct OtlpSample {
    /// The stack.
    #[prost(int32, tag = "1")]
    pub stack_index: i32,
    /// What else is known.
    #[prost(int32, repeated, tag = "2")]
    pub attribute_indices: Vec<i32>,
    /// One value: the total.
    #[prost(int64, repeated, tag = "4")]
    pub values: Vec<i64>,
}

/// A call stack.
#[derive(Clone, PartialEq, Eq, Hash, prost::Message)]
pub struct OtlpStack {
    /// Its locations, leaf first.
    #[prost(int32, repeated, tag = "1")]
    pub location_indices: Vec<i32>,
}

/// A binary.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct OtlpMapping {
    /// First address.
    #[prost(uint64, tag = "1")]
    pub memory_start: u64,
    /// First address after it.
    #[prost(uint64, tag = "2")]
    pub memory_limit: u64,
    /// Path.
    #[prost(int32, tag = "4")]
    pub filename_strindex: i32,
    /// Its build id.
    #[prost(int32, repeated, tag = "5")]
    pub attribute_indices: Vec<i32>,
}

/// A code address.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct OtlpLocation {
    /// Binary.
    #[prost(int32, tag = "1")]
    pub mapping_index: i32,
    /// Address.
    #[prost(uint64, tag = "2")]
    pub address: u64,
    /// Functions at this address, the innermost inlined one first.
    #[prost(message, repeated, tag = "3")]
    pub lines: Vec<OtlpLine>,
    /// What kind of code it is.
    #[prost(int32, repeated, tag = "4")]
    pub attribute_indices: Vec<i32>,
}

/// A line of a function.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct OtlpLine {
    /// FunctionEntry.
    #[prost(int32, tag = "1")]
    pub function_index: i32,
    /// Line in its file, 0 if not known.
    #[prost(int64, tag = "2")]
    pub line: i64,
}

/// A function.
#[derive(Clone, Copy, PartialEq, Eq, Hash, prost::Message)]
pub struct FunctionEntry {
    /// Name for people.
    #[prost(int32, tag = "1")]
    pub name_strindex: i32,
    /// Source file.
    #[prost(int32, tag = "3")]
    pub filename_strindex: i32,
}

/// A span of a trace.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct OtlpLink {
    /// The trace, 16 bytes.
    #[prost(bytes = "vec", tag = "1")]
    pub trace_id: Vec<u8>,
    /// The span, 8 bytes.
    #[prost(bytes = "vec", tag = "2")]
    pub span_id: Vec<u8>,
}

/// A key, its value and the value's unit.
#[derive(Clone, PartialEq, Eq, Hash, prost::Message)]
pub struct Attribute {
    /// The key.
    #[prost(int32, tag = "1")]
    pub key_strindex: i32,
    /// The value.
    #[prost(message, optional, tag = "2")]
    pub value: Option<AnyValue>,
    /// The unit.
    #[prost(int32, tag = "3")]
    pub unit_strindex: i32,
}

impl From<AttributeValue> for AnyValue {
    fn from(value: AttributeValue) -> Self {
        Self { value: Some(value) }
    }
}
