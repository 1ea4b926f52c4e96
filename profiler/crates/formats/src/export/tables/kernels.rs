//! `_summary.csv`, `_active.csv` and `_ts_analysis.csv`: statistics of kernels, in
//! columns with tabs and spaces between.

use super::id_text;
use aiprof_model::timeline::Timeline;
use aiprof_trace::analyze::statistics::{KernelRow, Spread, Statistics};
use std::io::{self, Write};

const SUMMARY: &str = "Time  \t Total Time\t Calls\t    Mean  \t  Median  \t    Min    \t   Max   \t   \
                       StDev  \t  pid\t Name ";

const ACTIVE: &str = "Total Kernel Time  \t  Elapsed Time\t  Start Time\t         End Time  \t \
                      Active percentage  \t   pid ";

/// Lengths of kernels by name: part of all (percent), sum, calls, mean, median, least,
/// most, standard deviation (microseconds), row group, name.
///
/// # Errors
/// As `out`.
pub(crate) fn write_summary(
    out: &mut impl Write,
    timeline: &Timeline,
    statistics: &Statistics,
) -> io::Result<()> {
    writeln!(out, "{SUMMARY}")?;
    for row in &statistics.kernels {
        let times = &row.times;
        writeln!(
            out,
            "{:5.2}\t  {:9.3}\t {:5}\t {:8.3}\t {:8.3}\t {:8.3}\t {:8.3}\t {:8.3}\t {:>4}\t {}",
            row.percent,
            times.total,
            times.calls,
            times.mean,
            times.median,
            times.min,
            times.max,
            times.deviation,
            id_text(timeline, &row.pid),
            OneLine(&row.name),
        )?;
    }
    Ok(())
}

/// How busy row groups were: kernel time, time from the first begin to the last end,
/// these two (microseconds), percent, row group.
///
/// # Errors
/// As `out`.
pub(crate) fn write_active(
    out: &mut impl Write,
    timeline: &Timeline,
    statistics: &Statistics,
) -> io::Result<()> {
    writeln!(out, "{ACTIVE}")?;
    for row in &statistics.active {
        let (start, end) = (double(timeline, row.start_us), double(timeline, row.end_us));
        let elapsed = match start.zip(end) {
            Some((start, end)) => end - start,
            None => row.elapsed_us(),
        };
        writeln!(
            out,
            "{:9.3}\t  {:9.3}\t  {:>9}\t {:>9}\t {:5.2}\t {:>4}",
            row.kernel_us,
            elapsed,
            clock(timeline, row.start_us),
            clock(timeline, row.end_us),
            row.percent(),
            id_text(timeline, &row.pid),
        )?;
    }
    Ok(())
}

/// Ticks between the counter values of kernels by name: calls, then for each of the
/// four steps mean, median, least, most, standard deviation, then row group and name.
/// Kernels without counters are left out.
///
/// # Errors
/// As `out`.
pub(crate) fn write_ts_analysis(
    out: &mut impl Write,
    timeline: &Timeline,
    statistics: &Statistics,
) -> io::Result<()> {
    out.write_all(b"Calls  ")?;
    for step in ["TS2-1", "TS3-2", "TS4-3", "TS5-4"] {
        // acelyzer's first column has a space more.
        let space = if step == "TS2-1" { " " } else { "" };
        write!(
            out,
            "\t{space}{step}_Mean   \t{step}_Median  \t{step}_Min    \t{step}_Max   \t{step}_StDev  "
        )?;
    }
    out.write_all(b"\tpid\t Name \n")?;
    for row in &statistics.kernels {
        if let Some(steps) = &row.ticks {
            write_steps(out, timeline, row, steps)?;
        }
    }
    Ok(())
}

fn write_steps(
    out: &mut impl Write,
    timeline: &Timeline,
    row: &KernelRow,
    steps: &[Spread; 4],
) -> io::Result<()> {
    let [first, ..] = steps;
    write!(out, " {:5}\t", first.calls)?;
    for step in steps {
        write!(
            out,
            " {:8.3}\t {:8.3}\t {:8.3}\t {:8.3}\t {:8.3}\t",
            step.mean, step.median, step.min, step.max, step.deviation
        )?;
    }
    let pid = id_text(timeline, &row.pid);
    writeln!(out, " {pid:>4}\t {}", OneLine(&row.name))
}

/// A time of the host's clock as the double that acelyzer has. It decides the last digit of
/// a time that ends in half a nanosecond. `None` where doubles have no nanoseconds left.
fn double(timeline: &Timeline, us: f64) -> Option<f64> {
    let time = us + timeline.origin() as f64;
    (time.abs() < (1i64 << 42) as f64).then_some(time)
}

/// A time of the host's clock, microseconds with three decimals.
fn clock(timeline: &Timeline, us: f64) -> String {
    if let Some(time) = double(timeline, us) {
        return format!("{time:.3}");
    }
    let Some(ns) = aiprof_model::timeline::number::nanoseconds(us) else {
        return format!("{:.3}", us + timeline.origin() as f64);
    };
    let all = i128::from(timeline.origin()) * 1000 + i128::from(ns);
    let sign = if all < 0 { "-" } else { "" };
    let all = all.unsigned_abs();
    format!("{sign}{}.{:03}", all / 1000, all % 1000)
}

/// A name that keeps to its line.
struct OneLine<'a>(&'a str);

impl std::fmt::Display for OneLine<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (index, part) in self.0.split(['\n', '\r']).enumerate() {
            if index > 0 {
                f.write_str(" ")?;
            }
            f.write_str(part)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use aiprof_model::timeline::{Dialect, Kinds};
    use aiprof_testkit::timelines as testing;
    use aiprof_trace::analyze::statistics;

    fn tables(kernels: &[(&str, u32, f64, [i64; 5])]) -> [String; 3] {
        let mut timeline = testing::timeline(Dialect::Flex);
        timeline.origin = Some(2_097_962_448_902);
        for (name, rank, ts, stamps) in kernels {
            let dur = (stamps[3] - stamps[2]) as f64 / 1000.0;
            let index = testing::slice(&mut timeline, name, *rank, *ts, dur);
            testing::count(&mut timeline, index, *stamps, -1);
        }
        let found = statistics::run(&timeline, &Kinds::new(&timeline), false);
        let (mut summary, mut active, mut steps) = (Vec::new(), Vec::new(), Vec::new());
        write_summary(&mut summary, &timeline, &found).unwrap();
        write_active(&mut active, &timeline, &found).unwrap();
        write_ts_analysis(&mut steps, &timeline, &found).unwrap();
        [summary, active, steps].map(|table| String::from_utf8(table).unwrap())
    }

    /// The kernels of the shipped four-rank sample as acelyzer 1.3.0 reads it (all as
    /// rank 0), and the tables it writes of them.
    #[test]
    fn tables_are_those_of_acelyzer() {
        let kernels = KERNELS;
        let [summary, active, steps] = tables(&kernels);
        assert_eq!(summary, include_str!("tests/allreduce_summary.csv"));
        assert_eq!(active, include_str!("tests/allreduce_active.csv"));
        assert_eq!(steps, include_str!("tests/allreduce_ts_analysis.csv"));
    }

    const KERNELS: [(&str, u32, f64, [i64; 5]); 7] = [
        (
            "add_11 Cmpt Exec",
            0,
            -1447.479004,
            [1072959780, 1072959780, 1072961255, 1073237269, 1073237275],
        ),
        (
            "add_11 Cmpt Exec",
            0,
            -1428.354004,
            [115296734, 115296734, 115364750, 115640121, 115640127],
        ),
        (
            "add_11 Cmpt Exec",
            0,
            -1397.89502,
            [780533384, 780533384, 780544096, 780819175, 780819181],
        ),
        (
            "AllReduce_all_reduce_4_Add_1 Cmpt Exec",
            0,
            -1133.35498,
            [1072960430, 1072960430, 1073254403, 1073263667, 1073263673],
        ),
        (
            "AllReduce_all_reduce_4_Add_3 Cmpt Exec",
            0,
            -1073.590088,
            [115363825, 115363825, 115680228, 115689559, 115689565],
        ),
        (
            "AllReduce_all_reduce_4_Add_5 Cmpt Exec",
            0,
            -940.255859,
            [780534129, 780534129, 780916842, 780926001, 780926007],
        ),
        (
            "add_11 Cmpt Exec",
            0,
            -77.437988,
            [2552537956, 2552537956, 2553144502, 2553427105, 2553427111],
        ),
    ];

    /// acelyzer 1.3.0 writes these three headers for a trace without kernels.
    #[test]
    fn without_kernels_there_are_headers_only() {
        let [summary, active, steps] = tables(&[]);
        let head = |text: &str| format!("{}\n", text.lines().next().unwrap());
        assert_eq!(summary, head(include_str!("tests/allreduce_summary.csv")));
        assert_eq!(active, head(include_str!("tests/allreduce_active.csv")));
        assert_eq!(steps, head(include_str!("tests/allreduce_ts_analysis.csv")));
    }

    #[test]
    fn times_since_1970_keep_their_nanoseconds() {
        let mut timeline = testing::timeline(Dialect::Flex);
        timeline.origin = Some(1_751_234_567_890_123);
        assert_eq!(clock(&timeline, 0.457), "1751234567890123.457");
        timeline.origin = Some(-1_751_234_567_890_123);
        assert_eq!(clock(&timeline, 0.0), "-1751234567890123.000");
        // The double is below the half.
        timeline.origin = Some(1_700_000_000);
        assert_eq!(clock(&timeline, 9.1655), "1700000009.165");
    }

    #[test]
    fn odd_names_keep_to_their_line() {
        let [summary, ..] = tables(&[("a\nb Cmpt Exec", 70_000, 1e300, [0; 5])]);
        assert_eq!(summary.lines().count(), 2);
        assert!(summary.ends_with("\t 70000\t a b Cmpt Exec\n"));
    }
}
