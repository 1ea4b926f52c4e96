//! The roofline of a device as one page, without scripts: a picture and a table.

use super::{PlainPage, escape};
use aiprof_tables::Table;
use aiprof_tables::roofline::{DevicePeaks, FlopKind, RooflineRow};
use std::fmt::Write as _;
use std::io::{self, Write};

const OWN_STYLE: &str = include_str!("roofline.css");
/// Kernels in the picture.
const POINTS: usize = 200;
/// Kernels with their number beside them.
const NUMBERED: usize = 12;
/// Sizes of the picture.
const WIDTH: f64 = 1000.0;
const HEIGHT: f64 = 560.0;
/// Places of the axes.
const LEFT: f64 = 80.0;
const BOTTOM: f64 = 500.0;
const TOP: f64 = 20.0;
const RIGHT: f64 = 980.0;
/// Decades that a picture may have: others are at its edge.
const DECADES: f64 = 12.0;

/// Writes the page. `title`: what was measured, `notes`: remarks about it.
///
/// # Errors
/// As `out`.
pub fn write(
    title: &str,
    rows: &[RooflineRow],
    peaks: &DevicePeaks,
    notes: &[String],
    out: &mut dyn Write,
) -> io::Result<()> {
    let page = PlainPage {
        title,
        kind: "roofline",
        heading: &format!("Roofline of {}", peaks.name),
        style: OWN_STYLE,
    };
    page.begin(out)?;
    out.write_all(b"<div class=\"page\">\n<main id=\"main\">\n<section>\n")?;
    let mut body = String::new();
    for note in notes {
        let _ = writeln!(body, "<p class=\"how\">{}</p>", escape::text(note));
    }
    Picture::of(rows, peaks).write(&mut body);
    table(rows, &mut body);
    out.write_all(body.as_bytes())?;
    write!(
        out,
        "</section>\n</main>\n</div>\n<footer>Written by aiprof {}. Each point is a kernel, and \
         its size shows its share of the time. Lines are the limits of the device.</footer>\n\
         </body>\n</html>\n",
        env!("CARGO_PKG_VERSION")
    )
}

/// A picture with logarithmic axes.
struct Picture<'a> {
    rows: &'a [RooflineRow],
    peaks: &'a DevicePeaks,
    /// Powers of ten at the ends of the axes.
    x: (f64, f64),
    y: (f64, f64),
}

/// The powers of ten around values.
fn decades(values: impl Iterator<Item = f64>) -> (f64, f64) {
    let logs = values.filter(|value| *value > 0.0).map(f64::log10);
    let logs = logs.filter(|log| log.is_finite());
    let (low, high) = logs.fold((f64::MAX, f64::MIN), |(low, high), log| {
        (low.min(log.floor()), high.max(log.ceil()))
    });
    match low < high {
        true => (low.max(high - DECADES), high),
        false => (0.0, 1.0),
    }
}

impl<'a> Picture<'a> {
    fn of(rows: &'a [RooflineRow], peaks: &'a DevicePeaks) -> Self {
        let most = peaks.gflops.iter().copied().fold(0.0, f64::max);
        let shown = rows.iter().take(POINTS);
        let intensities = shown
            .clone()
            .flat_map(|row| [row.memory_intensity, row.l3_intensity]);
        // Where the memory stops to be the limit.
        let x = decades(intensities.chain([0.1, most / peaks.memory_gbps * 3.0]));
        let speeds = shown.map(|row| row.gflops);
        let y = decades(speeds.chain([most, peaks.l3_gbps]));
        Self { rows, peaks, x, y }
    }

    fn x(&self, intensity: f64) -> f64 {
        let part = (intensity.log10() - self.x.0) / (self.x.1 - self.x.0);
        LEFT + part.clamp(0.0, 1.0) * (RIGHT - LEFT)
    }

    fn y(&self, gflops: f64) -> f64 {
        let part = (gflops.log10() - self.y.0) / (self.y.1 - self.y.0);
        BOTTOM - part.clamp(0.0, 1.0) * (BOTTOM - TOP)
    }

    fn write(&self, out: &mut String) {
        let _ = writeln!(
            out,
            "<svg class=\"roofline\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" \
             aria-label=\"Speed of kernels against operations per byte, with the limits of the \
             device; the table below has the numbers\">"
        );
        self.grid(out);
        for kind in FlopKind::ALL {
            let y = self.y(self.peaks.of(kind));
            let _ = writeln!(
                out,
                "<line class=\"peak\" x1=\"{LEFT}\" x2=\"{RIGHT}\" y1=\"{y:.1}\" y2=\"{y:.1}\"/>"
            );
        }
        self.peak_names(out);
        self.roof("memory", "memory", self.peaks.memory_gbps, out);
        self.roof("l3", "L3", self.peaks.l3_gbps, out);
        for (number, row) in self.rows.iter().take(POINTS).enumerate() {
            self.point(number, row, "memory", row.memory_intensity, out);
            self.point(number, row, "l3", row.l3_intensity, out);
        }
        out.push_str("</svg>\n");
    }

    fn grid(&self, out: &mut String) {
        for power in self.x.0 as i32..=self.x.1 as i32 {
            let x = self.x(10f64.powi(power));
            let _ = writeln!(
                out,
                "<line class=\"grid\" x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{TOP}\" y2=\"{BOTTOM}\"/>\
                 <text x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
                BOTTOM + 18.0,
                10f64.powi(power)
            );
        }
        for power in self.y.0 as i32..=self.y.1 as i32 {
            let y = self.y(10f64.powi(power));
            let _ = writeln!(
                out,
                "<line class=\"grid\" x1=\"{LEFT}\" x2=\"{RIGHT}\" y1=\"{y:.1}\" y2=\"{y:.1}\"/>\
                 <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
                LEFT - 6.0,
                y + 4.0,
                10f64.powi(power)
            );
        }
        let middle = (LEFT + RIGHT) / 2.0;
        let _ = writeln!(
            out,
            "<text x=\"{middle}\" y=\"{:.1}\" text-anchor=\"middle\">operations per byte\
             </text><text x=\"{LEFT}\" y=\"12\">GFLOP/s</text>",
            BOTTOM + 42.0
        );
    }

    /// Types of one peak share their name.
    fn peak_names(&self, out: &mut String) {
        let mut done: Vec<f64> = Vec::new();
        for peak in self.peaks.gflops {
            if done.contains(&peak) {
                continue;
            }
            done.push(peak);
            let kinds = FlopKind::ALL
                .into_iter()
                .filter(|kind| self.peaks.of(*kind) == peak);
            let names: Vec<&str> = kinds.map(FlopKind::name).collect();
            let _ = writeln!(
                out,
                "<text x=\"{RIGHT}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
                self.y(peak) - 4.0,
                names.join(", ")
            );
        }
    }

    /// The line up to the highest peak.
    fn roof(&self, class: &str, name: &str, gbps: f64, out: &mut String) {
        let most = self.peaks.gflops.iter().copied().fold(0.0, f64::max);
        let first = 10f64.powf(self.x.0).max(10f64.powf(self.y.0) / gbps);
        let knee = most / gbps;
        let [x1, y1] = [self.x(first), self.y(first * gbps)];
        let [x2, y2] = [self.x(knee), self.y(most)];
        // Outside of the two lines, which may lie close together.
        let (right, down, anchor) = match class {
            "memory" => (12.0, 12.0, "start"),
            _ => (-12.0, -6.0, "end"),
        };
        let _ = writeln!(
            out,
            "<path class=\"roof {class}\" d=\"M{x1:.1} {y1:.1}L{x2:.1} {y2:.1}H{RIGHT}\"/>\
             <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"{anchor}\">{name} {gbps} GB/s</text>",
            f64::midpoint(x1, x2) + right,
            f64::midpoint(y1, y2) + down,
        );
    }

    fn point(
        &self,
        number: usize,
        row: &RooflineRow,
        class: &str,
        intensity: f64,
        out: &mut String,
    ) {
        if intensity <= 0.0 || row.gflops <= 0.0 {
            return;
        }
        let (x, y) = (self.x(intensity), self.y(row.gflops));
        let radius = 3.0 + row.share.clamp(0.0, 100.0).sqrt();
        let _ = writeln!(
            out,
            "<circle class=\"{class}\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"{radius:.1}\"><title>{}: {:.1} \
             GFLOP/s, {intensity:.2} operations per byte</title></circle>",
            escape::text(&row.work.name),
            row.gflops
        );
        if number < NUMBERED {
            let _ = writeln!(
                out,
                "<text x=\"{:.1}\" y=\"{:.1}\">{}</text>",
                x + radius + 2.0,
                y + 4.0,
                number + 1
            );
        }
    }
}

fn table(rows: &[RooflineRow], out: &mut String) {
    const COLUMNS: &str = "
        0 nr: number in the picture
        name kernel: name and shape
        0 calls: measured runs
        3 time ms: device time of all runs
        bar share: share of the time of all kernels, in percent
        name bound by: what limits it
        name type: data type of most of its operations
        1 GFLOP/s: speed of these operations
        2 per byte of memory: operations
        2 per byte of L3: operations
        1 memory GB/s: bytes divided by time
        1 L3 GB/s: bytes divided by time
        2 headroom memory: how many times faster the memory would let it run
        2 headroom L3: how many times faster the L3 cache would let it run";
    let line = |(number, row): (usize, &RooflineRow)| {
        vec![
            (number + 1).into(),
            row.work.name.as_str().into(),
            row.work.calls.into(),
            (row.work.ns / 1e6).into(),
            row.share.into(),
            row.bound_by.word().into(),
            row.kind.name().into(),
            row.gflops.into(),
            row.memory_intensity.into(),
            row.l3_intensity.into(),
            (row.work.memory_bytes / row.work.ns).into(),
            (row.work.l3_bytes / row.work.ns).into(),
            row.memory_headroom.into(),
            row.l3_headroom.into(),
        ]
    };
    let lines = rows.iter().enumerate().map(line);
    let table = Table::described("Kernels", COLUMNS, lines);
    super::table::write(&table, false, out);
}

#[cfg(test)]
mod tests {
    use super::*;
    use aiprof_tables::roofline::{KernelWork, rows};

    #[test]
    fn points_are_below_the_roofs_and_names_are_text() {
        let peaks = DevicePeaks {
            name: "<b>".to_owned(),
            gflops: [40000.0, 300000.0, 20000.0, 10000.0, 300000.0],
            memory_gbps: 1000.0,
            l3_gbps: 2000.0,
        };
        let work = |name: &str, flops: f64, bytes: f64| KernelWork {
            name: name.to_owned(),
            calls: 1,
            ns: 1e9,
            flops: [0.0, 0.0, flops, 0.0, 0.0],
            memory_bytes: bytes,
            l3_bytes: bytes,
            ..KernelWork::default()
        };
        let kernels = vec![
            work("</title><script>", 1e13, 1e12),
            work("none", 0.0, 0.0),
            work("odd", 1e40, 1.0),
        ];
        let rows = rows(kernels, 3e9, &peaks);
        let mut out = Vec::new();
        write("a.csv", &rows, &peaks, &["so".to_owned()], &mut out).unwrap();
        let page = String::from_utf8(out).unwrap();
        assert!(!page.contains("<script") && !page.contains("<b>"), "{page}");
        assert!(!page.contains("NaN") && !page.contains(">inf"), "{page}");
        assert_eq!(page.matches("<circle").count(), 4, "{page}");
        assert!(!page.contains("http:") && !page.contains("https:"));
    }
}
