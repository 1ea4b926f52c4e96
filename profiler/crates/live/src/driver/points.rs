//! Tracepoints of device drivers: fences and the shared GPU scheduler.
//!
//! Their records are not the same in every kernel: which fields there are, and
//! where, is read from the kernel's description of them.

use aiprof_common::{TRACE_TEXTS, TRACE_VALUES, TraceField, TraceSpec};
use aiprof_model::wire::TracePoint;
use aiprof_system::files::kernel;
use std::{collections::HashMap, path::Path};

/// A tracepoint that is wanted, with the fields that are taken of it, if it has
/// them.
#[derive(Debug)]
struct WantedPoint {
    category: &'static str,
    name: &'static str,
    values: &'static [&'static str],
    texts: &'static [&'static str],
}

const FENCE: &[&str] = &["context", "seqno"];
const FENCE_TEXTS: &[&str] = &["driver", "timeline"];
const JOB: &[&str] = &[
    "fence_context",
    "fence_seqno",
    "job_count",
    "hw_job_count",
    "client_id",
];
const OLD_JOB: &[&str] = &["fence", "entity", "job_count", "hw_job_count", "id"];
const JOB_TEXTS: &[&str] = &["name", "dev"];

const fn wanted(
    category: &'static str,
    name: &'static str,
    values: &'static [&'static str],
    texts: &'static [&'static str],
) -> WantedPoint {
    WantedPoint {
        category,
        name,
        values,
        texts,
    }
}

/// Sources: include/trace/events/dma_fence.h and
/// drivers/gpu/drm/scheduler/gpu_scheduler_trace.h; the scheduler's names are those
/// of Linux 6.16 and later, and before.
const WANTED: &[WantedPoint] = &[
    wanted("dma_fence", "dma_fence_init", FENCE, FENCE_TEXTS),
    wanted("dma_fence", "dma_fence_emit", FENCE, FENCE_TEXTS),
    wanted("dma_fence", "dma_fence_signaled", FENCE, FENCE_TEXTS),
    wanted("dma_fence", "dma_fence_destroy", FENCE, FENCE_TEXTS),
    wanted("gpu_scheduler", "drm_sched_job_queue", JOB, JOB_TEXTS),
    wanted("gpu_scheduler", "drm_sched_job_run", JOB, JOB_TEXTS),
    wanted("gpu_scheduler", "drm_sched_job_done", JOB, JOB_TEXTS),
    wanted("gpu_scheduler", "drm_sched_job", OLD_JOB, JOB_TEXTS),
    wanted("gpu_scheduler", "drm_run_job", OLD_JOB, JOB_TEXTS),
    wanted("gpu_scheduler", "drm_sched_process_job", OLD_JOB, JOB_TEXTS),
];

/// A tracepoint of this kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Point {
    /// For the kernel side.
    pub(super) spec: TraceSpec,
    /// For the reader.
    pub(super) point: TracePoint,
}

/// The wanted tracepoints that this kernel has, numbered from 0. `tracing` is the
/// folder of tracefs.
pub(super) fn find(tracing: &Path) -> Vec<Point> {
    let mut points = Vec::new();
    for wanted in WANTED {
        let folder = tracing.join("events").join(wanted.category);
        let file = folder.join(wanted.name).join("format");
        let Ok(text) = kernel::read_to_string(&file) else {
            continue;
        };
        // Less than the number of those wanted.
        let id = points.len() as u32;
        points.extend(describe(wanted, id, &text));
    }
    points
}

/// A tracepoint by its description; `None` if it has no field that is wanted.
fn describe(wanted: &WantedPoint, id: u32, format: &str) -> Option<Point> {
    let fields: HashMap<&str, FormatField> = format.lines().filter_map(field).collect();
    let mut spec = TraceSpec::default();
    let (mut values, mut texts) = (Vec::new(), Vec::new());
    for (to, name) in spec.values.iter_mut().zip(wanted.values) {
        let number = fields.get(name).and_then(FormatField::number);
        *to = number.unwrap_or_default();
        values.push(number.map_or("", |_| *name).to_owned());
    }
    for (to, name) in spec.texts.iter_mut().zip(wanted.texts) {
        let text = fields.get(name).and_then(FormatField::text);
        *to = text.unwrap_or_default();
        texts.push(text.map_or("", |_| *name).to_owned());
    }
    let point = TracePoint {
        id,
        category: wanted.category.to_owned(),
        name: wanted.name.to_owned(),
        values,
        texts,
    };
    let any = point.values.iter().any(|name| !name.is_empty());
    any.then_some(Point { spec, point })
}
const _: () = assert!(JOB.len() <= TRACE_VALUES && OLD_JOB.len() <= TRACE_VALUES);
const _: () = assert!(JOB_TEXTS.len() <= TRACE_TEXTS && FENCE_TEXTS.len() <= TRACE_TEXTS);

/// A field of a description.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FormatField {
    offset: u16,
    size: u16,
    data_loc: bool,
    array: bool,
}

impl FormatField {
    fn number(&self) -> Option<TraceField> {
        let plain = !self.data_loc && !self.array && [1, 2, 4, 8].contains(&self.size);
        plain.then_some(TraceField {
            offset: self.offset,
            // At most 8.
            size: self.size as u8,
            data_loc: 0,
        })
    }

    fn text(&self) -> Option<TraceField> {
        (self.data_loc || self.array).then_some(TraceField {
            offset: self.offset,
            size: 1,
            data_loc: u8::from(self.data_loc),
        })
    }
}

/// A line such as
/// `field:__data_loc char[] driver; offset:8; size:4; signed:0;`, with tabs between
/// (Documentation/trace/events.rst).
fn field(line: &str) -> Option<(&str, FormatField)> {
    let rest = line.trim().strip_prefix("field:")?;
    let mut parts = rest.split(';').map(str::trim);
    let declaration = parts.next()?;
    let mut number = |key: &str| parts.next()?.strip_prefix(key)?.parse::<u16>().ok();
    let (offset, size) = (number("offset:")?, number("size:")?);
    let data_loc = declaration.starts_with("__data_loc ");
    let name = declaration.rsplit([' ', '*']).next()?;
    let (name, array) = match name.split_once('[') {
        Some((name, _)) => (name, true),
        None => (name, false),
    };
    let field = FormatField {
        offset,
        size,
        data_loc,
        array,
    };
    // The kernel side takes offsets below 4096.
    (offset < 4096 && !name.is_empty()).then_some((name, field))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    /// Linux 6.12's, as tracefs shows it.
    const SIGNALED: &str = "name: dma_fence_signaled\nID: 541\nformat:\n\
        \tfield:unsigned short common_type;\toffset:0;\tsize:2;\tsigned:0;\n\
        \tfield:int common_pid;\toffset:4;\tsize:4;\tsigned:1;\n\n\
        \tfield:__data_loc char[] driver;\toffset:8;\tsize:4;\tsigned:0;\n\
        \tfield:__data_loc char[] timeline;\toffset:12;\tsize:4;\tsigned:0;\n\
        \tfield:unsigned int context;\toffset:16;\tsize:4;\tsigned:0;\n\
        \tfield:unsigned int seqno;\toffset:20;\tsize:4;\tsigned:0;\n\n\
        print fmt: \"driver=%s\", __get_str(driver)\n";

    #[test]
    fn reads_a_description() {
        let point = describe(&WANTED[2], 5, SIGNALED).unwrap();
        assert_eq!(point.point.values, ["context", "seqno"]);
        assert_eq!(point.point.texts, ["driver", "timeline"]);
        assert_eq!(point.point.id, 5);
        let field = |offset, size, data_loc| TraceField {
            offset,
            size,
            data_loc,
        };
        assert_eq!(point.spec.values[..2], [field(16, 4, 0), field(20, 4, 0)]);
        assert_eq!(point.spec.values[2], TraceField::default());
        assert_eq!(point.spec.texts, [field(8, 1, 1), field(12, 1, 1)]);
    }

    /// A hand-made description in the shape of the scheduler's.
    #[test]
    fn fields_may_be_missing_or_of_other_shapes() {
        let format = "field:struct dma_fence * fence;\toffset:8;\tsize:8;\tsigned:0;\n\
            field:char name[16];\toffset:24;\tsize:16;\tsigned:0;\n\
            field:u32 job_count;\toffset:40;\tsize:3;\tsigned:0;\n\
            field:u64 id;\toffset:5000;\tsize:8;\tsigned:0;\n\
            field:int hw_job_count;\toffset:x;\tsize:4;\tsigned:1;\nfield:\nfield:a;\n";
        let point = describe(&WANTED[7], 0, format).unwrap();
        assert_eq!(point.point.values, ["fence", "", "", "", ""]);
        assert_eq!(point.point.texts, ["name", ""]);
        assert_eq!(
            (point.spec.values[0].offset, point.spec.values[0].size),
            (8, 8)
        );
        assert_eq!(
            (point.spec.texts[0].offset, point.spec.texts[0].data_loc),
            (24, 0)
        );
        assert!(describe(&WANTED[0], 0, format).is_none());
        assert!(describe(&WANTED[0], 0, "").is_none());
    }

    #[test]
    fn takes_what_a_kernel_has() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("events/dma_fence/dma_fence_signaled");
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("format"), SIGNALED).unwrap();
        let points = find(root.path());
        assert_eq!(points.len(), 1);
        assert_eq!(
            (points[0].point.id, &*points[0].point.name),
            (0, "dma_fence_signaled")
        );
        assert!(find(Path::new("/nowhere")).is_empty());
    }
}
