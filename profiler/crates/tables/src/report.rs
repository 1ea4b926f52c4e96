//! The tables of a report, for its page and for the terminal.

use crate::{Cell, Table};
use aiprof_trace::analyze::report::{Cycle, Kernel, Report, Series};
use aiprof_trace::analyze::report_details::Fault;

/// The rows of a table, one after the other.
type ReportRows<'r> = Box<dyn Iterator<Item = Vec<Cell>> + 'r>;

/// A table that can be made of a report.
pub struct ReportTable {
    title: &'static str,
    /// Its columns, as [`Table::described`] reads them.
    columns: &'static str,
    rows: fn(&Report) -> ReportRows<'_>,
}

impl ReportTable {
    /// The table of a report, the first `most` rows.
    pub fn first(&self, report: &Report, most: usize) -> Table {
        Table::described(self.title, self.columns, (self.rows)(report).take(most))
    }

    /// The table of a report; `None`: it has no rows.
    pub fn of(&self, report: &Report) -> Option<Table> {
        let table = self.first(report, usize::MAX);
        (!table.rows.is_empty()).then_some(table)
    }
}

/// How busy devices were.
pub const ACTIVE: ReportTable = ReportTable {
    title: "How busy each device was",
    columns: "
        0 Rank: rank, or all ranks that use the device
        0 Device: device
        bar Busy %: share of the time between its first and its last operation
        3 Busy ms: time in which at least one kernel, copy or fill ran
        3 Kernels ms: sum of the times of all kernels, also of those that overlap
        3 Elapsed ms: from the begin of the first operation to the end of the last",
    rows: |report| {
        Box::new(report.active.iter().map(|row| {
            vec![
                ranks_cell(row.rank, &row.other_ranks),
                device_cell(&row.device),
                row.busy_percent.into(),
                (row.busy_us / 1e3).into(),
                (row.kernel_us / 1e3).into(),
                (row.elapsed_us / 1e3).into(),
            ]
        }))
    },
};

/// One rank, or several: `0 1`.
pub(crate) fn ranks_cell(rank: u32, others: &[u32]) -> Cell {
    let others: Vec<String> = others.iter().map(|rank| format!(" {rank}")).collect();
    match others.is_empty() {
        true => rank.into(),
        false => format!("{rank}{}", others.concat()).into(),
    }
}

/// A device, by its number if it has one.
pub(crate) fn device_cell(device: &str) -> Cell {
    let number = device.parse::<u64>();
    number.map_or_else(|_| device.into(), Cell::Count)
}

/// The given kernels of all ranks.
pub fn kernels<'k>(kernels: impl IntoIterator<Item = &'k Kernel>) -> Table {
    const COLUMNS: &str = "
        0 Rank: rank
        0 Device: device
        name Kernel: name; running numbers are replaced by [N]
        bar Time %: share of its device's kernel time
        3 Total ms: time of all calls
        0 Calls: number of calls
        3 Mean \u{b5}s: mean length of a call
        3 Median \u{b5}s: half of the calls are shorter
        3 Max \u{b5}s: longest call
        1 Mean W: power while it ran
        4 Energy J: energy of all calls whose power is known
        1 Utilization %: ideal time in percent of the measured time
        3 Min \u{b5}s: shortest call
        3 Deviation \u{b5}s: standard deviation of the calls' lengths";
    let rows = kernels.into_iter().map(|kernel| {
        let lengths = &kernel.lengths;
        vec![
            kernel.rank.into(),
            device_cell(&kernel.device),
            kernel.name.as_str().into(),
            kernel.percent.into(),
            (lengths.total_us / 1e3).into(),
            lengths.calls.into(),
            lengths.mean_us.into(),
            lengths.median_us.into(),
            lengths.max_us.into(),
            kernel.mean_watts.into(),
            kernel.joules.into(),
            kernel.utilization_percent.into(),
            lengths.min_us.into(),
            lengths.deviation_us.into(),
        ]
    });
    Table::described("Kernels of all ranks", COLUMNS, rows)
}

/// Launches whose devices report no times.
pub const UNTIMED: ReportTable = ReportTable {
    title: "Launches without device times",
    columns: "
        0 Rank: rank
        name Kernel: its name
        0 Launches: number of launches
        3 Within ms: the time within which they ran; overlaps count once",
    rows: |report| {
        Box::new(report.details.untimed_launches.iter().map(|row| {
            vec![
                row.rank.into(),
                row.name.as_str().into(),
                row.launches.into(),
                (row.within_us / 1e3).into(),
            ]
        }))
    },
};

/// Utilization by rank.
pub const UTILIZATION: ReportTable = ReportTable {
    title: "Utilization of ranks",
    columns: "
        0 Rank: rank
        bar Utilization %: mean of the kernels with a known utilization, weighted by time
        3 With ms: time of the kernels with a known utilization
        3 Without ms: time of all other kernels",
    rows: |report| {
        Box::new(report.details.utilization.iter().map(|row| {
            vec![
                (row.rank as f64).into(),
                row.mean_percent.into(),
                (row.matmul_us / 1e3).into(),
                (row.other_us / 1e3).into(),
            ]
        }))
    },
};

/// Utilization by category and rank.
pub const CATEGORIES: ReportTable = ReportTable {
    title: "Utilization by category",
    columns: "
        0 Rank: rank
        name Phase: TTFT: prefill, ITL: decoding, UNKN: unknown
        name Category: the compiler's name
        bar Time %: share of the kernel time of its rank and phase
        3 Time ms: time of its kernels
        0 Calls: calls of its kernels
        3 Ideal ms: ideal time of its kernels
        2 Utilization %: ideal time in percent of the measured time",
    rows: |report| {
        Box::new(report.details.categories.iter().map(|row| {
            vec![
                (row.rank as f64).into(),
                row.phase.into(),
                row.name.as_str().into(),
                row.time_percent.into(),
                (row.time_us / 1e3).into(),
                row.calls.into(),
                (row.ideal_us / 1e3).into(),
                row.utilization_percent.into(),
            ]
        }))
    },
};

/// What repeats.
pub const ITERATIONS: ReportTable = ReportTable {
    title: "Iterations of each rank",
    columns: "
        0 Rank: rank
        0 Device: device
        0 Iterations: number of iterations
        0 Kernels each: kernels in one iteration
        3 Mean ms: mean time from one begin to the next",
    rows: |report| {
        Box::new(report.iterations.iter().map(|one| {
            vec![
                one.rank.into(),
                one.device.as_deref().map(device_cell).into(),
                one.count.into(),
                one.kernels_each.into(),
                (one.mean_us / 1e3).into(),
            ]
        }))
    },
};

/// Times of tokens.
pub const TOKENS: ReportTable = ReportTable {
    title: "Token times by rank",
    columns: "
        0 Rank: rank
        0 Tokens: number of tokens
        3 First ms: time to the first token, median
        3 Between ms: time from one token to the next, median
        3 Between, most ms: longest time from one token to the next",
    rows: |report| {
        Box::new(report.tokens.iter().map(|one| {
            vec![
                one.rank.into(),
                one.tokens.into(),
                one.first_us.map(|times| times.median_us / 1e3).into(),
                one.between_us.map(|times| times.median_us / 1e3).into(),
                one.between_us.map(|times| times.max_us / 1e3).into(),
            ]
        }))
    },
};

/// Computation against communication.
pub const COMMUNICATION: ReportTable = ReportTable {
    title: "Computation and communication by rank",
    columns: "
        0 Rank: rank
        3 Compute ms: time in which kernels run that are not part of a collective
        3 Collectives ms: time in which collectives run
        3 Both ms: time in which both run
        2 Hidden %: share of the collective time in which kernels run
        3 Copies ms: time in which copies or fills of device memory run
        2 Copies hidden %: share of the copy time in which kernels run",
    rows: |report| {
        Box::new(report.details.communication.iter().map(|row| {
            vec![
                row.rank.into(),
                (row.compute_us / 1e3).into(),
                (row.communication_us / 1e3).into(),
                (row.overlap_us / 1e3).into(),
                row.overlap_percent.into(),
                (row.copy_us / 1e3).into(),
                row.copy_overlap_percent.into(),
            ]
        }))
    },
};

/// Collectives in the order of time.
pub const COLLECTIVES: ReportTable = ReportTable {
    title: "Collective operations",
    columns: "
        3 Begin ms: begin on the first rank, since the first event
        name Group: name in the trace
        name Way: algorithm of its messages
        0 Ranks: number of ranks that take part
        3 Takes \u{b5}s: from the begin on the first rank to the end on the last
        0 Bytes: size of its largest message
        3 GB/s: all bytes divided by the whole time",
    rows: |report| {
        Box::new(report.details.collectives.iter().map(|one| {
            vec![
                (one.start_us / 1e3).into(),
                one.group.as_str().into(),
                one.algorithm.as_str().into(),
                one.parts.len().into(),
                one.elapsed_us.into(),
                one.bytes.map(|bytes| bytes as f64).into(),
                one.gigabytes_per_second.into(),
            ]
        }))
    },
};

/// Clocks of devices.
pub const CLOCKS: ReportTable = ReportTable {
    title: "Clocks of devices",
    columns: "
        0 Rank: rank
        6 MHz: ticks per microsecond
        6 Within MHz: largest possible error of the frequency
        0 Events: events that the clock fit uses
        3 Late \u{b5}s: median residual: how late the host's times typically are
        3 Within \u{b5}s: largest possible error of times from this clock
        0 Restarts: how often the clock was set or restarted
        0 Bends: how often its frequency changed
        0 Guessed: gaps in which the number of counter wraps is a guess",
    rows: |report| {
        Box::new(report.clocks.iter().map(|clock| {
            vec![
                clock.rank.into(),
                clock.mhz.into(),
                clock.mhz_error.into(),
                clock.anchors.into(),
                clock.scatter_us.into(),
                clock.offset_error_us.into(),
                clock.steps.into(),
                clock.bends.into(),
                clock.guessed.into(),
            ]
        }))
    },
};

/// Jobs that were not where they belong.
pub const JOBS: ReportTable = ReportTable {
    title: "Jobs with device events outside their round trip",
    columns: "
        0 Rank: rank
        name Job: its file
        name What was done: moved, bounded (not moved; the shift is known only roughly) or \
             refused (not moved)
        3 By \u{b5}s: how far it was moved
        3 Within \u{b5}s: largest possible error of the shift
        3 At least \u{b5}s: smallest possible shift
        3 At most \u{b5}s: largest possible shift
        name Why: why it was not moved",
    rows: |report| {
        Box::new(report.jobs.iter().map(|job| {
            vec![
                job.rank.into(),
                job.path.as_str().into(),
                job.state.into(),
                job.by_us.into(),
                job.error_us.into(),
                job.least_us.into(),
                job.most_us.into(),
                job.reason.unwrap_or_default().into(),
            ]
        }))
    },
};

/// How ranks were brought together.
pub const SHIFTS: ReportTable = ReportTable {
    title: "Shifts of ranks",
    columns: "
        0 Rank: rank
        3 Shift \u{b5}s: what was added to its times; \u{2013}: no messages connect it to the \
          others
        3 At least \u{b5}s: smallest possible shift
        3 At most \u{b5}s: largest possible shift",
    rows: |report| {
        let shifts = report.ranks.iter().flat_map(|ranks| &ranks.shifts);
        Box::new(shifts.map(|shift| {
            vec![
                shift.rank.into(),
                shift.us.into(),
                shift.least_us.into(),
                shift.most_us.into(),
            ]
        }))
    },
};

/// Messages once around some ranks.
pub const CYCLES: ReportTable = ReportTable {
    title: "Closure of cycles of messages",
    columns: "
        name Ranks: in the order of the messages
        3 Closure \u{b5}s: total time of the fastest messages",
    rows: |report| {
        let cycles = report.ranks.iter().flat_map(|ranks| &ranks.cycles);
        Box::new(cycles.map(|cycle: &Cycle| {
            let ranks = cycle.ranks.iter().chain(cycle.ranks.first());
            let way: Vec<String> = ranks.map(u32::to_string).collect();
            let closure = match cycle.closure_us.is_finite() {
                true => cycle.closure_us.into(),
                false => "\u{2013}".into(),
            };
            vec![way.join(" \u{2192} ").into(), closure]
        }))
    },
};

/// Events with a fault.
pub fn evidence(fault: &Fault) -> Table {
    const COLUMNS: &str = "
        0 Rank: rank
        name Event: its name
        3 Begin \u{b5}s: begin in the trace
        3 Takes \u{b5}s: its length
        3 By \u{b5}s: size of the error
        name Against: what it disagrees with
        name File: file that contains it";
    let rows = fault.evidence.iter().map(|event| {
        vec![
            event.rank.into(),
            event.name.as_str().into(),
            event.ts_us.into(),
            event.dur_us.into(),
            event.by_us.into(),
            event.against.as_str().into(),
            event.file.as_str().into(),
        ]
    });
    Table::described(fault.fault.as_str(), COLUMNS, rows)
}

/// Files.
pub const INPUTS: ReportTable = ReportTable {
    title: "Files that were read",
    columns: "
        name File: path as given
        name Kind: kind of trace
        0 Rank: rank that the file states; \u{2013}: its events state it
        0 Events: number of events
        name Synthetic: whether the file is marked as synthetic
        0 Problems: number of problems; they are listed below",
    rows: |report| {
        Box::new(report.inputs.iter().map(|input| {
            vec![
                input.path.as_str().into(),
                input.dialect.into(),
                input.rank.into(),
                input.events.into(),
                match input.is_synthetic {
                    true => "yes, synthetic".into(),
                    false => "not marked".into(),
                },
                input.problems.len().into(),
            ]
        }))
    },
};

/// Lines of plots.
pub const SERIES: ReportTable = ReportTable {
    title: "Counters in numbers",
    columns: "
        0 Rank: \u{2013}: all ranks
        name Counter: name in the trace
        name Unit: unit of its values
        0 Readings: number of readings
        3 Least: lowest value
        3 Most: highest value",
    rows: |report| {
        Box::new(report.series.iter().map(|line: &Series| {
            let least = line.points.iter().map(|p| p.1).fold(f64::MAX, f64::min);
            let most = line.points.iter().map(|p| p.3).fold(f64::MIN, f64::max);
            vec![
                line.rank.into(),
                line.name.as_str().into(),
                line.unit.as_str().into(),
                line.readings.into(),
                least.into(),
                most.into(),
            ]
        }))
    },
};
