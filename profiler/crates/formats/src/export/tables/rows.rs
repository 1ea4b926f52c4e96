//! Tables that acelyzer has not: comma-separated, with a header, texts in quotes where
//! they need them.

use super::id_text;
use aiprof_model::csv;
use aiprof_model::timeline::{Id, NONE, Timeline};
use aiprof_trace::analyze::energy::{EnergyMethod, KernelPower};
use aiprof_trace::analyze::iterations::Iterations;
use aiprof_trace::analyze::statistics::Spread;
use aiprof_trace::analyze::token_times::TokenTimes;
use std::io::{self, Write};

/// Power and energy of kernels.
///
/// # Errors
/// As `out`.
pub(crate) fn write_power(
    out: &mut impl Write,
    timeline: &Timeline,
    kernels: &[KernelPower],
) -> io::Result<()> {
    writeln!(
        out,
        "pid,rank,name,calls,time_us,measured_us,mean_watts,joules,watts_error,method"
    )?;
    for row in kernels {
        let method = match row.method {
            EnergyMethod::Fitted { error_watts } => format!("{error_watts:.3},fitted"),
            EnergyMethod::Shared if row.mean_watts.is_some() => ",shared".to_owned(),
            EnergyMethod::Shared => ",".to_owned(),
        };
        writeln!(
            out,
            "{},{},{},{:.3},{:.3},{},{:.9},{}",
            place(timeline, &row.pid, row.rank),
            csv::field(&row.name),
            row.calls,
            row.time_us,
            row.measured_us,
            row.mean_watts.map_or(String::new(), |w| format!("{w:.3}")),
            row.joules,
            method,
        )?;
    }
    Ok(())
}

/// Iterations, one by one. An interval is the time to the next one's begin, if that
/// follows at once.
///
/// # Errors
/// As `out`.
pub(crate) fn write_iterations(
    out: &mut impl Write,
    timeline: &Timeline,
    all: &[Iterations],
) -> io::Result<()> {
    writeln!(
        out,
        "pid,rank,iteration,kernels,start_us,duration_us,interval_us"
    )?;
    for one in all {
        let place = place(timeline, &one.pid, one.rank);
        let kernels = one.sequence.len();
        let nexts = one.list.iter().skip(1).map(Some).chain([None]);
        for (index, (iteration, next)) in one.list.iter().zip(nexts).enumerate() {
            let next = next.filter(|_| iteration.is_followed);
            let interval = next.map(|next| next.start_us - iteration.start_us);
            write!(out, "{place},{index},{kernels},")?;
            aiprof_model::timeline::number::write_micros(
                out,
                timeline.origin(),
                iteration.start_us,
            )?;
            writeln!(
                out,
                ",{:.3},{}",
                iteration.end_us - iteration.start_us,
                interval.map_or(String::new(), |us| format!("{us:.3}")),
            )?;
        }
    }
    Ok(())
}

/// Times of tokens: to the first (`TTFT`), and from one to the next (`ITL`).
///
/// # Errors
/// As `out`.
pub(crate) fn write_tokens(
    out: &mut impl Write,
    timeline: &Timeline,
    all: &[TokenTimes],
) -> io::Result<()> {
    writeln!(
        out,
        "pid,rank,metric,count,mean_us,median_us,min_us,max_us,stdev_us"
    )?;
    for one in all {
        let metrics = [("TTFT", one.first_token_us), ("ITL", one.between_tokens_us)];
        for (metric, spread) in metrics {
            let Some(spread) = spread else { continue };
            let place = place(timeline, &one.pid, one.rank);
            writeln!(out, "{place},{metric},{}", spread_text(&spread))?;
        }
    }
    Ok(())
}

fn spread_text(spread: &Spread) -> String {
    let Spread {
        calls,
        mean,
        median,
        min,
        max,
        deviation,
        ..
    } = spread;
    format!("{calls},{mean:.3},{median:.3},{min:.3},{max:.3},{deviation:.3}")
}

/// Row group and rank.
fn place(timeline: &Timeline, pid: &Id, rank: u32) -> String {
    let rank = match rank {
        NONE => String::new(),
        rank => rank.to_string(),
    };
    format!("{},{rank}", csv::field(&id_text(timeline, pid)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use aiprof_model::timeline::{Dialect, Sym};
    use aiprof_testkit::timelines as testing;
    use aiprof_trace::analyze::iterations::Iteration;

    fn text(write: impl FnOnce(&mut Vec<u8>, &Timeline) -> io::Result<()>) -> String {
        let mut timeline = testing::timeline(Dialect::Flex);
        timeline.names.intern("\"Spans\"");
        let mut out = Vec::new();
        write(&mut out, &timeline).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn kernels_that_were_not_measured_have_no_watts() {
        let row = KernelPower {
            pid: Id::Number(2),
            rank: 2,
            name: "a \"b\", c".into(),
            calls: 3,
            time_us: 1.5,
            measured_us: 0.0,
            joules: 0.0,
            mean_watts: None,
            method: EnergyMethod::Shared,
        };
        let measured = KernelPower {
            pid: Id::Number(2),
            rank: NONE,
            name: "d".into(),
            measured_us: 1.5,
            joules: 0.000_045,
            mean_watts: Some(30.0),
            method: EnergyMethod::Fitted { error_watts: 0.25 },
            ..row.clone()
        };
        let table = text(|out, timeline| write_power(out, timeline, &[row, measured]));
        let expected = "pid,rank,name,calls,time_us,measured_us,mean_watts,joules,watts_error,method\n\
                        2,2,\"a \"\"b\"\", c\",3,1.500,0.000,,0.000000000,,\n\
                        2,,d,3,1.500,1.500,30.000,0.000045000,0.250,fitted\n";
        assert_eq!(table, expected);
    }

    #[test]
    fn iterations_and_tokens_are_listed() {
        let iteration = |start_us, end_us, is_followed| Iteration {
            start_us,
            end_us,
            kernel_us: 0.0,
            is_followed,
        };
        let all = [Iterations {
            pid: Id::Number(0),
            rank: 0,
            kernels: 13,
            kernels_before: 1,
            first_kernel_us: 0.0,
            sequence: vec![Sym::EMPTY; 6],
            list: vec![iteration(5.0, 9.0, true), iteration(10.5, 14.0, false)],
            mean_us: 5.5,
            count: 1,
        }];
        // The origin is 1 s.
        let expected = "pid,rank,iteration,kernels,start_us,duration_us,interval_us\n\
                        0,0,0,6,1000005,4.000,5.500\n\
                        0,0,1,6,1000010.5,3.500,\n";
        assert_eq!(text(|out, t| write_iterations(out, t, &all)), expected);
        let tokens = [TokenTimes {
            pid: Id::Number(0),
            rank: 0,
            first_token_us: None,
            between_tokens_us: Spread::of(&mut [1.0, 2.0, 4.5]),
            tokens: 4,
        }];
        // By Python's statistics: the mean is 2.5, the deviation 1.8027756.
        let expected = "pid,rank,metric,count,mean_us,median_us,min_us,max_us,stdev_us\n\
                        0,0,ITL,3,2.500,2.000,1.000,4.500,1.803\n";
        assert_eq!(text(|out, t| write_tokens(out, t, &tokens)), expected);
    }
}
