//! The messages of Perfetto's trace format that hold track events
//! (github.com/google/perfetto, protos/perfetto/trace/perfetto_trace.proto), written by
//! hand. The generated ones are some thousand types, and only these matter here; building
//! needs no protoc.
//!
//! Texts are bytes: Perfetto does not promise UTF-8, and one bad byte must not cost a
//! packet.

/// `TracePacket`.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Packet {
    #[prost(message, optional, tag = "6")]
    pub clock_snapshot: Option<ClockSnapshot>,
    #[prost(uint64, optional, tag = "8")]
    pub timestamp: Option<u64>,
    #[prost(uint32, tag = "10")]
    pub sequence: u32,
    #[prost(message, optional, tag = "11")]
    pub track_event: Option<TrackEvent>,
    #[prost(message, optional, tag = "12")]
    pub interned_data: Option<InternedData>,
    #[prost(uint32, tag = "13")]
    pub sequence_flags: u32,
    #[prost(bool, tag = "41")]
    pub incremental_state_cleared: bool,
    #[prost(bool, tag = "42")]
    pub previous_packet_dropped: bool,
    #[prost(message, optional, tag = "43")]
    pub process_descriptor: Option<ProcessDescriptor>,
    #[prost(message, optional, tag = "44")]
    pub thread_descriptor: Option<ThreadDescriptor>,
    /// Packets, deflated (zlib).
    #[prost(bytes = "vec", tag = "50")]
    pub compressed_packets: Vec<u8>,
    #[prost(message, optional, tag = "53")]
    pub gpu_stage: Option<GpuStage>,
    #[prost(uint32, optional, tag = "58")]
    pub timestamp_clock_id: Option<u32>,
    #[prost(message, optional, tag = "59")]
    pub defaults: Option<Defaults>,
    #[prost(message, optional, tag = "60")]
    pub track_descriptor: Option<TrackDescriptor>,
    #[prost(message, optional, tag = "66")]
    pub perf_sample: Option<PerfSample>,
}

/// `GpuRenderStageEvent`: what a device did.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct GpuStage {
    #[prost(uint64, tag = "1")]
    pub event_id: u64,
    /// Nanoseconds.
    #[prost(uint64, optional, tag = "2")]
    pub duration: Option<u64>,
    #[prost(int32, tag = "3")]
    pub hw_queue_id: i32,
    #[prost(int32, tag = "4")]
    pub stage_id: i32,
    #[prost(message, optional, tag = "7")]
    pub specifications: Option<StageLists>,
    #[prost(uint32, optional, tag = "10")]
    pub submission_id: Option<u32>,
    #[prost(int32, tag = "11")]
    pub gpu_id: i32,
    #[prost(uint64, optional, tag = "13")]
    pub hw_queue_iid: Option<u64>,
    #[prost(uint64, optional, tag = "14")]
    pub stage_iid: Option<u64>,
    #[prost(bytes = "vec", optional, tag = "17")]
    pub name: Option<Vec<u8>>,
    #[prost(uint64, optional, tag = "20")]
    pub name_iid: Option<u64>,
    #[prost(message, optional, tag = "21")]
    pub launch: Option<KernelLaunch>,
}

/// `GpuRenderStageEvent.Specifications`: names by their place.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct StageLists {
    #[prost(message, repeated, tag = "2")]
    pub queues: Vec<StageName>,
    #[prost(message, repeated, tag = "3")]
    pub stages: Vec<StageName>,
}

/// `GpuRenderStageEvent.Specifications.Description`.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub(super) struct StageName {
    #[prost(bytes = "vec", tag = "1")]
    pub name: Vec<u8>,
}

/// `GpuRenderStageEvent.ComputeKernelLaunch`.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub(super) struct KernelLaunch {
    #[prost(message, optional, tag = "1")]
    pub grid: Option<Dim3>,
    #[prost(message, optional, tag = "2")]
    pub workgroup: Option<Dim3>,
}

/// `GpuRenderStageEvent.Dim3`.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub(super) struct Dim3 {
    #[prost(uint32, tag = "1")]
    pub x: u32,
    #[prost(uint32, tag = "2")]
    pub y: u32,
    #[prost(uint32, tag = "3")]
    pub z: u32,
}

/// `PerfSample`: a CPU sample.
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub(super) struct PerfSample {
    #[prost(uint32, tag = "1")]
    pub cpu: u32,
    #[prost(uint32, tag = "2")]
    pub pid: u32,
    #[prost(uint32, tag = "3")]
    pub tid: u32,
    #[prost(uint64, tag = "4")]
    pub callstack_iid: u64,
}

/// `PerfSampleDefaults`.
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub(super) struct PerfSampleDefaults {
    #[prost(message, optional, tag = "1")]
    pub timebase: Option<Timebase>,
}

/// `PerfEvents.Timebase`: what a sample stands for.
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub(super) struct Timebase {
    #[prost(uint64, tag = "1")]
    pub period: u64,
    #[prost(int32, tag = "4")]
    pub counter: i32,
}

/// `Frame`.
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub(super) struct Frame {
    #[prost(uint64, tag = "1")]
    pub iid: u64,
    #[prost(uint64, tag = "2")]
    pub function_name_id: u64,
}

/// `Callstack`: the outermost frame first.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Callstack {
    #[prost(uint64, tag = "1")]
    pub iid: u64,
    #[prost(uint64, repeated, packed = "false", tag = "2")]
    pub frame_ids: Vec<u64>,
}

/// The sequence's texts and defaults begin anew with this packet.
pub(super) const STATE_CLEARED: u32 = 1;
/// The packet is of use only with the sequence's texts and defaults.
pub(super) const NEEDS_STATE: u32 = 2;

/// `ClockSnapshot`: the same moment on several clocks.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct ClockSnapshot {
    #[prost(message, repeated, tag = "1")]
    pub clocks: Vec<SnapshotClock>,
    #[prost(int32, tag = "2")]
    pub primary_trace_clock: i32,
}

/// `ClockSnapshot.Clock`.
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub(super) struct SnapshotClock {
    #[prost(uint32, tag = "1")]
    pub clock_id: u32,
    #[prost(uint64, tag = "2")]
    pub timestamp: u64,
    /// Times are differences to the one before.
    #[prost(bool, tag = "3")]
    pub is_incremental: bool,
    /// Nanoseconds per unit; 0: one.
    #[prost(uint64, tag = "4")]
    pub unit_multiplier_ns: u64,
}

/// `TracePacketDefaults`.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Defaults {
    #[prost(message, optional, tag = "11")]
    pub track_event: Option<TrackEventDefaults>,
    #[prost(message, optional, tag = "12")]
    pub perf_sample: Option<PerfSampleDefaults>,
    #[prost(uint32, optional, tag = "58")]
    pub timestamp_clock_id: Option<u32>,
}

/// `TrackEventDefaults`.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct TrackEventDefaults {
    #[prost(uint64, optional, tag = "11")]
    pub track_uuid: Option<u64>,
    #[prost(uint64, repeated, packed = "false", tag = "31")]
    pub extra_counters: Vec<u64>,
    #[prost(uint64, repeated, packed = "false", tag = "45")]
    pub extra_double_counters: Vec<u64>,
}

/// `InternedData`.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct InternedData {
    #[prost(message, repeated, tag = "1")]
    pub categories: Vec<Interned>,
    #[prost(message, repeated, tag = "2")]
    pub names: Vec<Interned>,
    #[prost(message, repeated, tag = "3")]
    pub keys: Vec<Interned>,
    #[prost(message, repeated, tag = "5")]
    pub functions: Vec<Interned>,
    #[prost(message, repeated, tag = "6")]
    pub frames: Vec<Frame>,
    #[prost(message, repeated, tag = "7")]
    pub callstacks: Vec<Callstack>,
    /// Queues and stages of devices.
    #[prost(message, repeated, tag = "24")]
    pub stages: Vec<Interned>,
    #[prost(message, repeated, tag = "29")]
    pub values: Vec<Interned>,
}

/// `EventCategory`, `EventName`, `DebugAnnotationName`, `InternedString`.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub(super) struct Interned {
    #[prost(uint64, tag = "1")]
    pub iid: u64,
    #[prost(bytes = "vec", tag = "2")]
    pub text: Vec<u8>,
}

/// `TrackEvent.type`: not given; a legacy event may give it.
pub(super) const UNSPECIFIED: i32 = 0;
/// `TrackEvent.type`: begin of a slice.
pub(super) const SLICE_BEGIN: i32 = 1;
/// `TrackEvent.type`: end of the slice that began last.
pub(super) const SLICE_END: i32 = 2;
/// `TrackEvent.type`: a moment.
pub(super) const INSTANT: i32 = 3;
/// `TrackEvent.type`: a value of a counter.
pub(super) const COUNTER: i32 = 4;

/// `TrackEvent`.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct TrackEvent {
    #[prost(int64, optional, tag = "1")]
    pub timestamp_delta_us: Option<i64>,
    #[prost(uint64, repeated, packed = "false", tag = "3")]
    pub category_iids: Vec<u64>,
    #[prost(message, repeated, tag = "4")]
    pub annotations: Vec<Annotation>,
    #[prost(message, optional, tag = "6")]
    pub legacy: Option<LegacyEvent>,
    #[prost(int32, tag = "9")]
    pub kind: i32,
    #[prost(uint64, tag = "10")]
    pub name_iid: u64,
    #[prost(uint64, optional, tag = "11")]
    pub track_uuid: Option<u64>,
    #[prost(int64, repeated, packed = "false", tag = "12")]
    pub extra_counter_values: Vec<i64>,
    #[prost(int64, optional, tag = "16")]
    pub timestamp_absolute_us: Option<i64>,
    #[prost(bytes = "vec", repeated, tag = "22")]
    pub categories: Vec<Vec<u8>>,
    #[prost(bytes = "vec", optional, tag = "23")]
    pub name: Option<Vec<u8>>,
    #[prost(int64, optional, tag = "30")]
    pub counter_value: Option<i64>,
    #[prost(uint64, repeated, packed = "false", tag = "31")]
    pub extra_counters: Vec<u64>,
    #[prost(uint64, repeated, packed = "false", tag = "36")]
    pub flow_ids_old: Vec<u64>,
    #[prost(uint64, repeated, packed = "false", tag = "42")]
    pub terminating_flow_ids_old: Vec<u64>,
    #[prost(double, optional, tag = "44")]
    pub double_counter_value: Option<f64>,
    #[prost(uint64, repeated, packed = "false", tag = "45")]
    pub extra_double_counters: Vec<u64>,
    #[prost(double, repeated, packed = "false", tag = "46")]
    pub extra_double_counter_values: Vec<f64>,
    #[prost(fixed64, repeated, packed = "false", tag = "47")]
    pub flow_ids: Vec<u64>,
    #[prost(fixed64, repeated, packed = "false", tag = "48")]
    pub terminating_flow_ids: Vec<u64>,
}

/// `TrackEvent.LegacyEvent`: an event of the Trace Event Format.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub(super) struct LegacyEvent {
    #[prost(uint64, tag = "1")]
    pub name_iid: u64,
    #[prost(int32, tag = "2")]
    pub phase: i32,
    #[prost(int64, tag = "3")]
    pub duration_us: i64,
}

/// `DebugAnnotation`: an argument.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Annotation {
    #[prost(uint64, tag = "1")]
    pub name_iid: u64,
    #[prost(bool, optional, tag = "2")]
    pub bool: Option<bool>,
    #[prost(uint64, optional, tag = "3")]
    pub uint: Option<u64>,
    #[prost(int64, optional, tag = "4")]
    pub int: Option<i64>,
    #[prost(double, optional, tag = "5")]
    pub double: Option<f64>,
    #[prost(bytes = "vec", optional, tag = "6")]
    pub string: Option<Vec<u8>>,
    #[prost(uint64, optional, tag = "7")]
    pub pointer: Option<u64>,
    #[prost(message, optional, tag = "8")]
    pub nested: Option<Nested>,
    #[prost(bytes = "vec", optional, tag = "9")]
    pub json: Option<Vec<u8>>,
    #[prost(bytes = "vec", optional, tag = "10")]
    pub name: Option<Vec<u8>>,
    #[prost(message, repeated, tag = "11")]
    pub dict: Vec<Annotation>,
    #[prost(message, repeated, tag = "12")]
    pub array: Vec<Annotation>,
    #[prost(uint64, optional, tag = "17")]
    pub string_iid: Option<u64>,
}

/// `DebugAnnotation.NestedValue`, the older form of dictionaries and arrays.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Nested {
    /// 1: a dictionary, 2: an array.
    #[prost(int32, tag = "1")]
    pub kind: i32,
    #[prost(bytes = "vec", repeated, tag = "2")]
    pub keys: Vec<Vec<u8>>,
    #[prost(message, repeated, tag = "3")]
    pub values: Vec<Nested>,
    #[prost(message, repeated, tag = "4")]
    pub array: Vec<Nested>,
    #[prost(int64, optional, tag = "5")]
    pub int: Option<i64>,
    #[prost(double, optional, tag = "6")]
    pub double: Option<f64>,
    #[prost(bool, optional, tag = "7")]
    pub bool: Option<bool>,
    #[prost(bytes = "vec", optional, tag = "8")]
    pub string: Option<Vec<u8>>,
}

/// `TrackDescriptor`.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct TrackDescriptor {
    #[prost(uint64, tag = "1")]
    pub uuid: u64,
    #[prost(bytes = "vec", tag = "2")]
    pub name: Vec<u8>,
    #[prost(message, optional, tag = "3")]
    pub process: Option<ProcessDescriptor>,
    #[prost(message, optional, tag = "4")]
    pub thread: Option<ThreadDescriptor>,
    #[prost(uint64, tag = "5")]
    pub parent_uuid: u64,
    #[prost(message, optional, tag = "8")]
    pub counter: Option<CounterDescriptor>,
    #[prost(bytes = "vec", tag = "10")]
    pub static_name: Vec<u8>,
    #[prost(bytes = "vec", tag = "13")]
    pub atrace_name: Vec<u8>,
}

/// `ProcessDescriptor`.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub(super) struct ProcessDescriptor {
    #[prost(int64, tag = "1")]
    pub pid: i64,
    #[prost(bytes = "vec", repeated, tag = "2")]
    pub cmdline: Vec<Vec<u8>>,
    #[prost(int64, optional, tag = "3")]
    pub sort_index: Option<i64>,
    #[prost(bytes = "vec", tag = "6")]
    pub name: Vec<u8>,
    #[prost(bytes = "vec", repeated, tag = "8")]
    pub labels: Vec<Vec<u8>>,
}

/// `ThreadDescriptor`.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub(super) struct ThreadDescriptor {
    #[prost(int64, tag = "1")]
    pub pid: i64,
    #[prost(int64, tag = "2")]
    pub tid: i64,
    #[prost(int64, optional, tag = "3")]
    pub sort_index: Option<i64>,
    #[prost(bytes = "vec", tag = "5")]
    pub name: Vec<u8>,
    #[prost(int64, optional, tag = "6")]
    pub reference_timestamp_us: Option<i64>,
}

/// `CounterDescriptor`.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub(super) struct CounterDescriptor {
    /// 1: nanoseconds, 2: a number, 3: bytes.
    #[prost(int32, tag = "3")]
    pub unit: i32,
    /// What values are multiplied with; 0: one.
    #[prost(int64, tag = "4")]
    pub multiplier: i64,
    /// Values are differences to the one before.
    #[prost(bool, tag = "5")]
    pub is_incremental: bool,
    #[prost(bytes = "vec", tag = "6")]
    pub unit_name: Vec<u8>,
}
