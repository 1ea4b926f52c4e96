//! What rocprofv3 writes with `--output-format json`: lists of records by what they are of, and
//! tables of names beside them. They become events of the Trace Event Format, with rocprofv3's
//! own categories, and are read like any other of them.

use super::json::{self, JsonError, Reading};
use aiprof_model::json::quote;
use aiprof_model::timeline::{Stretch, Timeline};
use rustc_hash::FxHashMap;
use serde::Deserialize;
use std::fmt::Write as _;
use std::io::{BufReader, Read};

/// The member that holds all.
const MEMBER: &[u8] = b"\"rocprofiler-sdk-tool\"";
/// `rocprofiler_agent_type_t`: a GPU.
const GPU: u64 = 2;

/// Whether a file begins as rocprofv3's do.
pub(super) fn is_rocprof(head: &[u8]) -> bool {
    let inner = head.trim_ascii_start().strip_prefix(b"{");
    inner.is_some_and(|inner| inner.trim_ascii_start().starts_with(MEMBER))
}

#[derive(Deserialize)]
struct Output {
    #[serde(rename = "rocprofiler-sdk-tool")]
    processes: Vec<RocprofProcess>,
}

/// A process.
#[derive(Default, Deserialize)]
#[serde(default)]
struct RocprofProcess {
    metadata: Metadata,
    agents: Vec<Agent>,
    kernel_symbols: Vec<Symbol>,
    strings: NameTables,
    buffer_records: Records,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Metadata {
    pid: i64,
}

#[derive(Clone, Copy, Default, Deserialize)]
#[serde(default)]
struct AgentHandle {
    handle: u64,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Agent {
    id: AgentHandle,
    #[serde(rename = "type")]
    kind: u64,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Symbol {
    kernel_id: u64,
    kernel_name: String,
    formatted_kernel_name: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct NameTables {
    buffer_records: Vec<KindNames>,
}

/// Names of a kind's operations, by number.
#[derive(Default, Deserialize)]
#[serde(default)]
struct KindNames {
    operations: Vec<String>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Records {
    kernel_dispatch: Vec<ApiRecord>,
    memory_copy: Vec<ApiRecord>,
    hip_api: Vec<ApiRecord>,
    hsa_api: Vec<ApiRecord>,
    rccl_api: Vec<ApiRecord>,
}

/// A record; times in nanoseconds.
#[derive(Default, Deserialize)]
#[serde(default)]
struct ApiRecord {
    kind: usize,
    operation: usize,
    thread_id: u64,
    correlation_id: Correlation,
    start_timestamp: u64,
    end_timestamp: u64,
    dispatch_info: Dispatch,
    stream_id: Option<AgentHandle>,
    src_agent_id: AgentHandle,
    dst_agent_id: AgentHandle,
    bytes: Option<u64>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Correlation {
    internal: u64,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Dispatch {
    agent_id: AgentHandle,
    queue_id: AgentHandle,
    kernel_id: u64,
}

/// Reads a file and adds it to a timeline, but for what is outside of a stretch of time.
/// `path` is its name for messages and for the job's; `from` its text, decompressed.
///
/// # Errors
/// It cannot be read, or is damaged: its names stand behind what has them.
pub fn read(
    from: impl Read,
    path: &str,
    kept: Stretch,
    into: &mut Timeline,
) -> Result<Reading, JsonError> {
    let output: Output = serde_json::from_reader(BufReader::new(from)).map_err(|error| {
        let offset = error.column() as u64;
        JsonError::Io {
            offset,
            error: error.into(),
        }
    })?;
    let mut text = String::from("[");
    for process in &output.processes {
        process.write(&mut text);
    }
    text.push(']');
    drop(output);
    json::read_within(text.as_bytes(), path, kept, into)
}

impl RocprofProcess {
    fn write(&self, out: &mut String) {
        let gpus = self.agents.iter().filter(|agent| agent.kind == GPU);
        let gpus: FxHashMap<u64, usize> = gpus.map(|agent| agent.id.handle).zip(0..).collect();
        let symbols = self.kernel_symbols.iter().map(|symbol| {
            let names = [&symbol.formatted_kernel_name, &symbol.kernel_name];
            let name = names.into_iter().find(|name| !name.is_empty());
            (symbol.kernel_id, name.map_or("", String::as_str))
        });
        let symbols: FxHashMap<u64, &str> = symbols.collect();
        for gpu in gpus.values() {
            name_process(out, *gpu as i64, &format!("GPU {gpu}"));
        }
        let records = &self.buffer_records;
        for record in &records.kernel_dispatch {
            let name = symbols.get(&record.dispatch_info.kernel_id).copied();
            let name = name.unwrap_or_default();
            let gpu = gpus.get(&record.dispatch_info.agent_id.handle);
            record.write_work(out, name, "kernel_dispatch", gpu);
        }
        for record in &records.memory_copy {
            let ends = [record.dst_agent_id, record.src_agent_id];
            let gpu = ends.iter().find_map(|end| gpus.get(&end.handle));
            record.write_work(out, self.name(record), "memory_copy", gpu);
        }
        let calls = [
            ("hip_api", &records.hip_api),
            ("hsa_api", &records.hsa_api),
            ("rccl_api", &records.rccl_api),
        ];
        for (cat, records) in calls {
            for record in records {
                let place = (self.metadata.pid, record.thread_id);
                record.write(out, self.name(record), cat, place);
                out.push_str("}},\n");
            }
        }
    }

    /// The name of what was called or copied.
    fn name(&self, record: &ApiRecord) -> &str {
        let kind = self.strings.buffer_records.get(record.kind);
        let name = kind.and_then(|kind| kind.operations.get(record.operation));
        name.map_or("", String::as_str)
    }
}

fn name_process(out: &mut String, pid: i64, name: &str) {
    let _ = write!(
        out,
        "{{\"ph\":\"M\",\"name\":\"process_name\",\"pid\":{pid},\"args\":{{\"name\":"
    );
    quote(out, name);
    out.push_str("}},\n");
}

impl ApiRecord {
    /// Writes what a device did.
    fn write_work(&self, out: &mut String, name: &str, cat: &str, gpu: Option<&usize>) {
        let device = gpu.copied().unwrap_or(0);
        let queue = self.stream_id.unwrap_or(self.dispatch_info.queue_id).handle;
        self.write(out, name, cat, (device as i64, queue));
        let _ = write!(out, ",\"device\":{device},\"stream\":{queue}");
        if let Some(bytes) = self.bytes {
            let _ = write!(out, ",\"bytes\":{bytes}");
        }
        out.push_str("}},\n");
    }

    /// Writes an event up to its first argument. `place`: process and thread.
    fn write(&self, out: &mut String, name: &str, cat: &str, place: (i64, u64)) {
        let (pid, tid) = place;
        let _ = write!(
            out,
            "{{\"ph\":\"X\",\"cat\":\"{cat}\",\"pid\":{pid},\"tid\":{tid},\"name\":"
        );
        quote(out, name);
        let (begin, end) = (self.start_timestamp, self.end_timestamp);
        for (key, ns) in [("ts", begin), ("dur", end.saturating_sub(begin))] {
            let _ = write!(out, ",\"{key}\":{}.{:03}", ns / 1000, ns % 1000);
        }
        let number = self.correlation_id.internal;
        let _ = write!(out, ",\"args\":{{\"corr_id\":{number}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use aiprof_model::timeline::{Dialect, Kinds};

    /// One call, its kernel and a copy on the GPU with this handle.
    fn text(gpu: u64, symbol: &str) -> String {
        format!(
            r#"{{"rocprofiler-sdk-tool":[{{
            "metadata":{{"pid":77,"node":{{}}}},
            "agents":[{{"id":{{"handle":5}},"type":1}},{{"id":{{"handle":{gpu}}},"type":2}}],
            "kernel_symbols":[{{"kernel_id":0}},{{"kernel_id":3,{symbol}}}],
            "strings":{{"buffer_records":[
                {{"kind":"HIP","operations":["hipInit","hipLaunchKernel"]}},
                {{"kind":"MEMORY_COPY","operations":["NONE","MEMORY_COPY_HOST_TO_DEVICE"]}}]}},
            "buffer_records":{{
                "hip_api":[{{"kind":0,"operation":1,"thread_id":9,"correlation_id":{{"internal":4}},
                    "start_timestamp":1000,"end_timestamp":3500}}],
                "kernel_dispatch":[{{"correlation_id":{{"internal":4,"external":0}},
                    "start_timestamp":5000,"end_timestamp":7250,
                    "dispatch_info":{{"kernel_id":3,"agent_id":{{"handle":{gpu}}},
                        "queue_id":{{"handle":2}}}}}}],
                "memory_copy":[{{"kind":1,"operation":1,"start_timestamp":8000,"bytes":64,
                    "end_timestamp":9000,"dst_agent_id":{{"handle":{gpu}}}}}],
                "counter_collection":[{{"any":1}}]}}}}]}}"#
        )
    }

    #[test]
    fn records_become_calls_kernels_and_copies() {
        for (gpu, symbol) in [
            (
                9,
                r#""formatted_kernel_name":"add(int*)","kernel_name":"add.kd""#,
            ),
            (u64::MAX, r#""kernel_name":"add(int*)""#),
        ] {
            let text = text(gpu, symbol);
            assert!(is_rocprof(text.as_bytes()));
            let mut timeline = Timeline::default();
            read(text.as_bytes(), "x.json", Stretch::ALL, &mut timeline).unwrap();
            let job = &timeline.jobs[0];
            assert_eq!((job.dialect, job.writer), (Dialect::Torch, "rocprof"));
            let kinds = Kinds::new(&timeline);
            let slices: Vec<_> = timeline.events.iter().filter(|e| e.is_slice()).collect();
            let found: Vec<_> = slices
                .iter()
                .map(|e| (timeline.name(e.name), e.dur(), e.correlation))
                .collect();
            let expected = [
                ("add(int*)", 2.25, 4),
                ("MEMORY_COPY_HOST_TO_DEVICE", 1.0, 0),
                ("hipLaunchKernel", 2.5, 4),
            ];
            assert_eq!(found, expected);
            assert!(kinds.is_kernel(&timeline, slices[0]));
            assert!(kinds.is_data_in(&timeline, slices[1]));
        }
    }

    #[test]
    fn damage_is_an_error() {
        let text = text(9, "\"kernel_name\":\"k\"");
        let cut = &text.as_bytes()[..text.len() / 2];
        assert!(read(cut, "x.json", Stretch::ALL, &mut Timeline::default()).is_err());
        assert!(!is_rocprof(b"{\"traceEvents\":[]}"));
    }
}
