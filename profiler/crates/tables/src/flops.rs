//! What kernels compute and move by the shapes of their operators, and how fast.

use super::occupancy::TensorCores;
use super::roofline::{BoundBy, DevicePeaks, FlopKind};
use super::{Cell, Request, Table, TableEntry};
use aiprof_trace::torch::operator_work::{CountedWork, WorkRow, rows};
use aiprof_trace::torch::{ElementType, WorkPhase};
use aiprof_trace::work::WorkClass;

/// `--table flops`.
pub(super) const ENTRY: TableEntry = TableEntry {
    name: "flops",
    about: "kernels by operator and phase: FLOPs, bytes, intensity, rates; roofline with --device",
    title: "Operations and bytes of kernels",
    columns: "rank phase operator shapes kernel type calls time:us share:percent flops:GFLOP:3 \
              bytes:MB:3 intensity:FLOP/byte:2 rate:GFLOP/s:1 bandwidth:GB/s:1 roofline:percent \
              bound_by",
    make,
};

/// Columns of the table of phases.
const PHASES: &str = "rank phase time:us share:percent counted:percent flops:GFLOP:3 bytes:MB:3 \
                      intensity:FLOP/byte:2 rate:GFLOP/s:1 bandwidth:GB/s:1";
/// Operators that a note names.
const MOST_NAMED: usize = 3;

fn make(request: &Request<'_>) -> Vec<Table> {
    let options = request.options;
    let found = rows(request.timeline, request.index(), options.by_shape);
    let mut lines = Vec::new();
    let mut above: Vec<String> = Vec::new();
    for rank in found.chunk_by(|a, b| a.rank == b.rank) {
        let all: f64 = rank.iter().map(|row| row.us).sum();
        for row in rank {
            let peaks = options.peaks.as_ref();
            let roofline = peaks.and_then(|peaks| Roofline::of(row, peaks));
            if roofline.as_ref().is_some_and(|one| one.percent > 100.0) {
                let name = named(row);
                if !above.contains(&name) {
                    above.push(name);
                }
            }
            lines.push(line(row, all, roofline));
        }
    }
    let mut table = ENTRY.noted(lines, notes(&found, &above));
    let (by_shape, has_peaks) = (options.by_shape, options.peaks.is_some());
    table.keep(|name| match name {
        "shapes" => by_shape,
        "roofline" | "bound_by" => has_peaks,
        _ => true,
    });
    let phases = found.chunk_by(|a, b| a.rank == b.rank);
    vec![
        table,
        Table::of(
            "flops-phases",
            "Operations and bytes by phase",
            PHASES,
            phases.flat_map(of_phases),
        ),
    ]
}

fn line(row: &WorkRow, all: f64, roofline: Option<Roofline>) -> Vec<Cell> {
    let text = |text: &str| Cell::from(Some(text).filter(|text| !text.is_empty()));
    let mut cells = vec![
        row.rank.into(),
        row.phase.map(WorkPhase::word).into(),
        text(&row.operator),
        row.shapes.clone().into(),
        row.kernels.join(" | ").into(),
        row.element.map(ElementType::word).into(),
        row.calls.into(),
        row.us.into(),
        (all > 0.0).then(|| 100.0 * row.us / all).into(),
    ];
    cells.extend(rates(row.counted.as_ref()));
    cells.extend([
        Cell::from(roofline.as_ref().map(|one| one.percent)),
        roofline.map(|one| one.bound_by.word()).into(),
    ]);
    cells
}

/// Operations, bytes, intensity, and both by time.
fn rates(counted: Option<&CountedWork>) -> [Cell; 5] {
    let flops = counted.map(|one| one.flops as f64);
    let bytes = counted.and_then(|one| one.bytes).map(|bytes| bytes as f64);
    let intensity = flops.zip(bytes).filter(|(_, bytes)| *bytes > 0.0);
    // Operations in a nanosecond are 10^9 in a second.
    let ns = counted.map(|one| one.us * 1e3).filter(|ns| *ns > 0.0);
    let rate = |of: Option<f64>| of.zip(ns).map(|(of, ns)| of / ns);
    [
        flops.map(|flops| flops / 1e9).into(),
        bytes.map(|bytes| bytes / 1e6).into(),
        intensity.map(|(flops, bytes)| flops / bytes).into(),
        rate(flops).into(),
        rate(bytes).into(),
    ]
}

/// A row under the roofs of a device.
struct Roofline {
    /// The least time that the device needs, by the row's time, percent.
    percent: f64,
    bound_by: BoundBy,
}

impl Roofline {
    /// `None`: something is not counted, the device's peak is not known, or the host's memory takes
    /// part.
    fn of(row: &WorkRow, peaks: &DevicePeaks) -> Option<Self> {
        let has_host = |name: &String| name.contains("HtoD") || name.contains("DtoH");
        if row.kernels.iter().any(has_host) {
            return None;
        }
        let counted = row.counted.as_ref().filter(|one| one.us > 0.0)?;
        // GFLOP/s are operations in a nanosecond, and GB/s bytes.
        let moving = counted.bytes? as f64 / peaks.memory_gbps;
        let computing = match counted.flops {
            0 => 0.0,
            flops => flops as f64 / peaks.of(kind(row, counted.is_matrix)?),
        };
        Some(Self {
            percent: moving.max(computing) / (counted.us * 1e3) * 100.0,
            bound_by: match computing > moving {
                true => BoundBy::Compute,
                false => BoundBy::Memory,
            },
        })
    }
}

/// The peak that a row's operations have. Other than products of matrices, PyTorch computes numbers
/// of 16 bits with 32. The file of peaks has none of TF32 and of 8 bits.
fn kind(row: &WorkRow, is_matrix: bool) -> Option<FlopKind> {
    let is_tensor = |name: &String| TensorCores::of(name, WorkClass::Compute) == TensorCores::Yes;
    Some(match (row.element?, is_matrix) {
        (ElementType::Fp64, _) => FlopKind::Fp64,
        (ElementType::Fp16, true) => FlopKind::Fp16Xmx,
        (ElementType::Bf16, true) => FlopKind::Bf16Xmx,
        (ElementType::Fp32, true) if row.kernels.iter().any(is_tensor) => return None,
        (ElementType::Fp32, _) | (ElementType::Fp16 | ElementType::Bf16, false) => FlopKind::Fp32,
        _ => return None,
    })
}

fn named(row: &WorkRow) -> String {
    let element = row.element.map_or("type not known", ElementType::word);
    format!("{} ({element})", row.operator)
}

fn notes(found: &[WorkRow], above: &[String]) -> Vec<String> {
    let mut notes = Vec::new();
    if !found.iter().any(|row| row.counted.is_some()) {
        notes.push(
            "no operator has shapes that aiprof can count; record with record_shapes=True"
                .to_owned(),
        );
    }
    if !above.is_empty() {
        let some = above.iter().take(MOST_NAMED);
        let mut names = some.map(String::as_str).collect::<Vec<_>>().join(", ");
        if let Some(more @ 1..) = above.len().checked_sub(MOST_NAMED) {
            names.push_str(&format!(" and {more} more"));
        }
        notes.push(format!(
            "above 100 %: {names}; a cache had the inputs, or the device is faster than in its file"
        ));
    }
    notes
}

/// Sums of a rank's phases, in the order of phases.
fn of_phases(rank: &[WorkRow]) -> Vec<Vec<Cell>> {
    let all: f64 = rank.iter().map(|row| row.us).sum();
    let mut phases: Vec<_> = rank.iter().map(|row| row.phase).collect();
    phases.sort_unstable();
    phases.dedup();
    let lines = phases.into_iter().filter_map(|phase| {
        let rows = || rank.iter().filter(move |row| row.phase == phase);
        let us: f64 = rows().map(|row| row.us).sum();
        let counted = rows().filter_map(|row| row.counted);
        let counted = counted.reduce(|a, b| CountedWork {
            us: a.us + b.us,
            flops: a.flops.saturating_add(b.flops),
            bytes: a.bytes.zip(b.bytes).map(|(a, b)| a.saturating_add(b)),
            is_matrix: false,
        });
        let share = |part: f64, whole: f64| (whole > 0.0).then(|| 100.0 * part / whole);
        let mut cells = vec![
            rank.first()?.rank.into(),
            phase.map(WorkPhase::word).into(),
            us.into(),
            share(us, all).into(),
            share(counted.map_or(0.0, |one| one.us), us).into(),
        ];
        cells.extend(rates(counted.as_ref()));
        Some(cells)
    });
    lines.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peaks() -> DevicePeaks {
        DevicePeaks {
            gflops: [40_000.0, 300_000.0, 20_000.0, 10_000.0, 300_000.0],
            memory_gbps: 1000.0,
            l3_gbps: 2000.0,
            ..DevicePeaks::default()
        }
    }

    fn row(element: ElementType, us: f64, flops: u64, bytes: u64, is_matrix: bool) -> WorkRow {
        WorkRow {
            rank: 0,
            phase: None,
            operator: "aten::mm".to_owned(),
            shapes: None,
            kernels: vec!["k".to_owned()],
            element: Some(element),
            calls: 1,
            us,
            counted: Some(CountedWork {
                us,
                flops,
                bytes: Some(bytes),
                is_matrix,
            }),
        }
    }

    /// 1 ms in which the device could do 300 GFLOP with its matrix engine, 20 without, and move
    /// 1 GB.
    #[test]
    fn the_nearer_roof_bounds() {
        let of = |element, flops, bytes, is_matrix| {
            let row = row(element, 1000.0, flops, bytes, is_matrix);
            let found = Roofline::of(&row, &peaks())?;
            Some((found.percent.round(), found.bound_by))
        };
        let (giga, mega) = (1_000_000_000, 1_000_000);
        let bf16 = ElementType::Bf16;
        let compute = Some((50.0, BoundBy::Compute));
        assert_eq!(of(bf16, 150 * giga, 100 * mega, true), compute);
        let memory = Some((60.0, BoundBy::Memory));
        assert_eq!(of(bf16, 150 * giga, 600 * mega, true), memory);
        assert_eq!(of(bf16, 10 * giga, 100 * mega, false), compute);
        assert_eq!(of(ElementType::Int64, 0, 600 * mega, false), memory);
        // No peak is known of 8 bits.
        assert_eq!(of(ElementType::Fp8, giga, 600 * mega, true), None);
        let mut unknown = row(bf16, 1000.0, giga, mega, true);
        unknown.counted = None;
        assert!(Roofline::of(&unknown, &peaks()).is_none());
        let mut copy = row(bf16, 1000.0, 0, mega, false);
        copy.kernels = vec!["Memcpy HtoD (Pinned -> Device)".to_owned()];
        assert!(Roofline::of(&copy, &peaks()).is_none());
        // TF32 on tensor cores is faster than 32 bits without.
        let mut tensor = row(ElementType::Fp32, 1000.0, 30 * giga, mega, true);
        assert!(Roofline::of(&tensor, &peaks()).is_some());
        tensor.kernels = vec!["ampere_sgemm_tf32_s1688gemm_128x128".to_owned()];
        assert!(Roofline::of(&tensor, &peaks()).is_none());
    }

    #[test]
    fn what_is_above_the_roof_is_named() {
        let above = ["a", "b", "c", "d", "e"].map(str::to_owned);
        let rows = [row(ElementType::Fp32, 1.0, 1, 1, true)];
        let found = notes(&rows, &above);
        assert!(found[0].starts_with("above 100 %: a, b, c and 2 more; "));
        assert!(notes(&rows, &[]).is_empty());
        let nothing = notes(&[], &[]);
        assert!(nothing[0].ends_with("record with record_shapes=True"));
    }

    /// 4 us with 8,000 operations and 2,000 bytes: 2 GFLOP/s, 0.5 GB/s, 4 operations for a byte.
    /// Half as much time is not counted.
    #[test]
    fn phases_are_sums() {
        let counted = |phase, us, flops, bytes| WorkRow {
            phase,
            ..row(ElementType::Fp32, us, flops, bytes, true)
        };
        let unknown = WorkRow {
            counted: None,
            ..counted(Some(WorkPhase::Decode), 2.0, 0, 0)
        };
        let rows = [
            counted(Some(WorkPhase::Decode), 3.0, 6000, 1500),
            unknown,
            counted(Some(WorkPhase::Decode), 1.0, 2000, 500),
            counted(None, 6.0, 1, 1),
        ];
        let found = of_phases(&rows);
        assert_eq!(found.len(), 2);
        assert_eq!(found[0][1], Cell::None);
        let decode = &found[1];
        assert_eq!(decode[1], "decode".into());
        let numbers = [6.0, 50.0, 100.0 * 4.0 / 6.0, 8e-6, 0.002, 4.0, 2.0, 0.5];
        assert_eq!(decode[2..], numbers.map(Cell::Number));
    }
}
