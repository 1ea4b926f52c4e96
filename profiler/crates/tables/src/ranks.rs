//! What ranks have to do with each other: who waited for whom, how evenly work is shared
//! out, and what collectives move.

use super::hta::temporal;
use super::messages;
use super::{Request, Table, TableEntry};
use aiprof_model::timeline::{Event, Timeline};
use aiprof_trace::mpi::{MpiCollective, MpiTraffic};
use aiprof_trace::ranks::Collectives;
use aiprof_trace::work::WorkClass;
use std::collections::BTreeMap;

/// `--table rank-waits`.
pub(super) const WAITS: TableEntry = TableEntry {
    name: "rank-waits",
    about: "which rank waited for which in collectives and messages, how often and how long",
    title: "Ranks that wait for others in collectives and messages",
    columns: "rank waits_for collectives waiting:us mean:us longest:us share:percent messages",
    make: make_waits,
};

/// `--table rank-balance`.
pub(super) const BALANCE: TableEntry = TableEntry {
    name: "rank-balance",
    about: "how evenly ranks share the work: compute, waits for others, idle, share of the mean",
    title: "Work of ranks",
    columns: "rank total:us compute:us compute_of_mean:percent communication:us waiting:us \
              copy:us idle:us",
    make: make_balance,
};

/// `--table collectives`.
pub(super) const COLLECTIVES: TableEntry = TableEntry {
    name: "collectives",
    about: "collectives by kind and size: number, time, waits for other ranks, bandwidth",
    title: "Collectives",
    columns: "collective group ranks dtype bytes count time:us mean:us waiting:us \
              algorithm_bandwidth:GB/s:3 bus_bandwidth:GB/s:3",
    make: make_collectives,
};

/// Notes for collectives and messages that could not be matched.
fn notes(found: &Collectives, mpi: &MpiTraffic) -> Vec<String> {
    let mut notes = messages::notes(mpi);
    let is_empty = found.matched.is_empty() && found.messages.is_empty();
    let is_empty = is_empty && found.unpaired == 0 && mpi.collectives.is_empty();
    match (found.unmatched, is_empty && mpi.messages.is_empty()) {
        (0, false) => {}
        (0, true) => notes.push("no collective has several ranks in the input".to_owned()),
        (kernels, _) => notes.push(format!(
            "{kernels} collective kernels are left out: ranks have different numbers of them"
        )),
    }
    if found.unpaired > 0 {
        notes.push(format!(
            "{} kernels that send or receive are left out: the input does not show which belong \
             together",
            found.unpaired
        ));
    }
    notes
}

/// Waits of one rank for another.
#[derive(Default)]
struct WaitSum {
    collectives: u64,
    messages: u64,
    us: f64,
    longest_us: f64,
}

/// Waits by the rank that waits and the one that comes last.
fn waits(found: &Collectives, mpi: &MpiTraffic) -> BTreeMap<(u32, u32), WaitSum> {
    let mut sums: BTreeMap<(u32, u32), WaitSum> = BTreeMap::new();
    for wait in mpi.waits() {
        let sum = sums.entry((wait.rank, wait.waits_for)).or_default();
        match wait.is_message {
            true => sum.messages += 1,
            false => sum.collectives += 1,
        }
        sum.us += wait.us;
        sum.longest_us = sum.longest_us.max(wait.us);
    }
    let collectives = found.matched.iter().map(|one| (one, false));
    let messages = found.messages.iter().map(|one| (one, true));
    for (one, is_message) in collectives.chain(messages) {
        let Some(last) = one.last() else { continue };
        let others = one.parts.iter().filter(|part| part.rank != last.rank);
        for part in others.filter(|part| part.waited_us > 0.0) {
            let sum = sums.entry((part.rank, last.rank)).or_default();
            match is_message {
                true => sum.messages += 1,
                false => sum.collectives += 1,
            }
            sum.us += part.waited_us;
            sum.longest_us = sum.longest_us.max(part.waited_us);
        }
    }
    sums
}

fn make_waits(request: &Request<'_>) -> Vec<Table> {
    let index = request.index();
    let found = Collectives::of(request.timeline, index, request.outcome);
    let elapsed: BTreeMap<u32, f64> = temporal::run(index)
        .iter()
        .map(|split| (split.rank, split.total_us))
        .collect();
    let mut sums: Vec<_> = waits(&found, &request.outcome.mpi).into_iter().collect();
    sums.sort_by(|a, b| b.1.us.total_cmp(&a.1.us));
    let rows = sums.iter().map(|((rank, last), sum)| {
        let whole = elapsed.get(rank).copied().filter(|us| *us > 0.0);
        vec![
            (*rank).into(),
            (*last).into(),
            sum.collectives.into(),
            sum.us.into(),
            (sum.us / (sum.collectives + sum.messages).max(1) as f64).into(),
            sum.longest_us.into(),
            whole.map(|whole| 100.0 * sum.us / whole).into(),
            sum.messages.into(),
        ]
    });
    vec![WAITS.noted(rows, notes(&found, &request.outcome.mpi))]
}

fn make_balance(request: &Request<'_>) -> Vec<Table> {
    let index = request.index();
    let found = Collectives::of(request.timeline, index, request.outcome);
    let mut waited: BTreeMap<u32, f64> = BTreeMap::new();
    for ((rank, _), sum) in waits(&found, &request.outcome.mpi) {
        *waited.entry(rank).or_default() += sum.us;
    }
    let splits = temporal::run(index);
    let computes = || {
        let each = splits.iter();
        each.map(|split| split.class_us(WorkClass::Compute))
    };
    let mean = computes().sum::<f64>() / splits.len().max(1) as f64;
    let most = computes().fold(0.0, f64::max);
    let rows = splits.iter().map(|split| {
        let [compute, communication, copy] = WorkClass::ALL.map(|class| split.class_us(class));
        vec![
            split.rank.into(),
            split.total_us.into(),
            compute.into(),
            (mean > 0.0).then(|| 100.0 * compute / mean).into(),
            communication.into(),
            waited.get(&split.rank).copied().unwrap_or(0.0).into(),
            copy.into(),
            split.idle_us().into(),
        ]
    });
    let mut notes = notes(&found, &request.outcome.mpi);
    if mean > 0.0 && splits.len() > 1 {
        notes.push(format!(
            "the rank with the most compute time has {:.3} times the mean",
            most / mean
        ));
    }
    vec![BALANCE.noted(rows, notes)]
}

/// Which collectives are alike: what they do, with what, between how many.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Alike {
    name: String,
    group: String,
    ranks: u64,
    dtype: String,
    bytes: Option<u64>,
}

/// What collectives that are alike took.
#[derive(Clone, Copy, Default)]
struct Moved {
    count: u64,
    /// From when the last rank is there, microseconds.
    us: f64,
    /// Waits of all ranks for the last one.
    waited_us: f64,
}

fn make_collectives(request: &Request<'_>) -> Vec<Table> {
    let timeline = request.timeline;
    let index = request.index();
    let found = Collectives::of(timeline, index, request.outcome);
    let mut sums: BTreeMap<Alike, Moved> = BTreeMap::new();
    let mut add = |alike: Alike, us: f64, waited_us: f64| {
        let sum = sums.entry(alike).or_default();
        sum.count += 1;
        sum.us += us;
        sum.waited_us += waited_us;
    };
    for one in found.matched.iter().chain(&found.messages) {
        let event = one.event.and_then(|at| timeline.events.get(at as usize));
        let (Some(event), Some(last)) = (event, one.last()) else {
            continue;
        };
        let waited = one.parts.iter().map(|part| part.waited_us).sum();
        let us = (last.end - last.start).micros();
        add(alike(timeline, event), us, waited);
    }
    let mut notes = notes(&found, &request.outcome.mpi);
    let mpi = &request.outcome.mpi;
    let is_empty = found.matched.is_empty() && found.messages.is_empty();
    if is_empty && found.unmatched == 0 && mpi.collectives.is_empty() {
        // A rank's waits for others cannot be separated from the rest.
        let reason = match index.ranks.len() {
            0 | 1 => "the input has only one rank",
            _ => "the input does not show which collectives and messages belong together",
        };
        notes = vec![format!(
            "times include waits for other ranks, because {reason}"
        )];
        for rank in &index.ranks {
            let work = rank.work.iter();
            for work in work.filter(|work| work.class == WorkClass::Communication) {
                if let Some(event) = timeline.events.get(work.event as usize) {
                    add(alike(timeline, event), work.us(), 0.0);
                }
            }
        }
    }
    for one in &request.outcome.mpi.collectives {
        let waits = one.waits();
        let waited = waits.iter().map(|(.., us)| us).sum();
        add(alike_of_mpi(one), one.busy_us(), waited);
    }
    for one in &request.outcome.collectives.collectives {
        let alike = Alike {
            name: one.algorithm.to_string(),
            group: timeline.name(one.group).to_owned(),
            ranks: one.spans.len() as u64,
            dtype: String::new(),
            bytes: u64::try_from(one.bytes).ok(),
        };
        let starts = one.spans.iter().map(|span| span.start_us);
        let last = starts.clone().fold(f64::MIN, f64::max);
        let waited = starts.map(|start| last - start).sum();
        add(alike, (one.end_us - last).max(0.0), waited);
    }
    let mut sums: Vec<_> = sums.into_iter().collect();
    sums.sort_by(|a, b| (b.1.us + b.1.waited_us).total_cmp(&(a.1.us + a.1.waited_us)));
    let rows = sums.iter().map(|(alike, sum)| {
        let mean = sum.us / sum.count.max(1) as f64;
        // Bytes by microseconds are megabytes by seconds.
        let speed = alike.bytes.filter(|_| mean > 0.0);
        let speed = speed.map(|bytes| bytes as f64 / mean / 1000.0);
        let bus = speed.zip(bus_share(&alike.name, alike.ranks));
        vec![
            alike.name.as_str().into(),
            alike.group.as_str().into(),
            alike.ranks.into(),
            alike.dtype.as_str().into(),
            alike.bytes.into(),
            sum.count.into(),
            sum.us.into(),
            mean.into(),
            sum.waited_us.into(),
            speed.into(),
            bus.map(|(speed, share)| speed * share).into(),
        ]
    });
    vec![COLLECTIVES.noted(rows, notes)]
}

/// A collective of MPI.
fn alike_of_mpi(one: &MpiCollective) -> Alike {
    Alike {
        name: one.name.clone(),
        group: one.group.clone(),
        ranks: one.ranks.into(),
        dtype: String::new(),
        bytes: one.bytes,
    }
}

/// Kineto's description of a kernel of a collective (torch's `ParamCommsUtils.hpp`).
fn alike(timeline: &Timeline, event: &Event) -> Alike {
    let text = |key| {
        timeline
            .arg(event, key)
            .unwrap_or_default()
            .trim_matches('"')
    };
    let number = |key| text(key).parse::<u64>().ok();
    let dtype = text("dtype");
    let elements = number("In msg nelems").max(number("Out msg nelems"));
    let bytes = elements.zip(bytes_of(dtype));
    let name = match text("Collective name") {
        "" => timeline.name(event.name),
        name => name,
    };
    Alike {
        name: name.to_owned(),
        group: text("Process Group Description").to_owned(),
        ranks: number("Group size").unwrap_or(0),
        dtype: dtype.to_owned(),
        bytes: bytes.and_then(|(elements, size)| elements.checked_mul(size)),
    }
}

/// Bytes of an element, by torch's names of types (`c10/core/ScalarType.h`).
fn bytes_of(dtype: &str) -> Option<u64> {
    Some(match dtype {
        "Byte" | "Char" | "Bool" | "QInt8" | "QUInt8" => 1,
        name if name.starts_with("Float8") => 1,
        "Short" | "Half" | "BFloat16" | "UInt16" => 2,
        "Int" | "Float" | "ComplexHalf" | "UInt32" => 4,
        "Long" | "Double" | "ComplexFloat" | "UInt64" => 8,
        "ComplexDouble" => 16,
        _ => return None,
    })
}

/// What part of its bytes each rank's link carries at least, by nccl-tests'
/// `PERFORMANCE.md`; `None`: not known of this collective.
fn bus_share(name: &str, ranks: u64) -> Option<f64> {
    let name = name.to_ascii_lowercase().replace('_', "");
    let others = (ranks > 1).then(|| (ranks - 1) as f64 / ranks as f64)?;
    let has = |word: &str| name.contains(word);
    match () {
        () if has("allreduce") => Some(2.0 * others),
        () if has("allgather") || has("reducescatter") || has("alltoall") => Some(others),
        () if has("broadcast") || has("reduce") => Some(1.0),
        () => None,
    }
}

#[cfg(test)]
mod tests {
    use super::super::Cell;
    use super::super::test_tables::tables_of;
    use super::*;
    use aiprof_model::timeline::{Dialect, Event, Id, Job, Ph, Stated, Time, Track};

    /// A trace of several ranks: kernels as rank, begin, length, name and arguments.
    fn timeline(kernels: &[(u32, f64, f64, &str, &str)]) -> Timeline {
        let mut timeline = Timeline::default();
        for rank in 0..4 {
            timeline.jobs.push(Job {
                path: format!("{rank}.json"),
                name: format!("{rank}.json"),
                hash: 0,
                writer: "",
                dialect: Dialect::Torch,
                rank: Some(rank),
                is_processed: false,
                stated: Stated::default(),
                is_recording: false,
            });
        }
        for (rank, ts, dur, name, args) in kernels {
            let track = timeline.tracks.intern(Track {
                job: *rank,
                rank: *rank,
                ..Track::row(Id::Number(i64::from(*rank)), Id::Number(7))
            });
            let name = timeline.names.intern(name);
            let mut event = Event::new(Ph::Complete, name, track, Time::from_micros(*ts));
            event.set_dur(*dur);
            event.cat = timeline.names.intern("kernel");
            event.args = timeline.texts.add(args);
            timeline.events.push(event);
        }
        timeline
    }

    fn rows(timeline: &Timeline, entry: &TableEntry) -> (Vec<Vec<Cell>>, Vec<String>) {
        let table = tables_of(timeline, entry).remove(0);
        (table.rows, table.notes)
    }

    const NCCL: &str = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgs)";

    #[test]
    fn the_last_rank_is_waited_for() {
        // Clocks of rank 1 are 1 s ahead: lengths show who waits, begins do not.
        let timeline = timeline(&[
            (0, 100.0, 50.0, NCCL, ""),
            (1, 1_000_140.0, 10.0, NCCL, ""),
            (2, 110.0, 40.0, NCCL, ""),
            (0, 200.0, 10.0, NCCL, ""),
            (1, 1_000_180.0, 30.0, NCCL, ""),
            (2, 190.0, 20.0, NCCL, ""),
        ]);
        let (rows, notes) = rows(&timeline, &WAITS);
        let seen: Vec<Vec<Cell>> = rows.iter().map(|row| row[..4].to_vec()).collect();
        let row = |rank: u32, last: u32, count: u64, us: f64| {
            vec![rank.into(), last.into(), count.into(), Cell::Number(us)]
        };
        assert_eq!(
            seen,
            [
                row(0, 1, 1, 40.0),
                row(2, 1, 1, 30.0),
                row(1, 0, 1, 20.0),
                row(2, 0, 1, 10.0),
            ]
        );
        assert_eq!(notes, Vec::<String>::new());
    }

    #[test]
    fn ranks_with_other_numbers_of_collectives_are_not_matched() {
        let timeline = timeline(&[
            (0, 100.0, 50.0, NCCL, ""),
            (0, 200.0, 50.0, NCCL, ""),
            (1, 140.0, 10.0, NCCL, ""),
        ]);
        let (rows, notes) = rows(&timeline, &WAITS);
        assert_eq!(rows.len(), 0);
        assert!(notes[0].starts_with("3 collective kernels"), "{notes:?}");
    }

    #[test]
    fn messages_between_two_ranks_are_no_collectives() {
        let kernels = |name| {
            let kernels = [(0, 100.0, 50.0, name, ""), (1, 140.0, 10.0, name, "")];
            rows(&timeline(&kernels), &WAITS).0.len()
        };
        assert_eq!(
            kernels("void vllm::cross_device_reduce_1stage<float, 2>(int)"),
            1
        );
        assert_eq!(kernels("ncclDevKernel_SendRecv(ncclDevKernelArgs)"), 0);
        assert_eq!(kernels("kuserbuffers_pushsend(int*, int*)"), 0);
    }

    #[test]
    fn groups_of_one_name_are_told_apart_by_their_ranks() {
        let group =
            |ranks: &str| format!(r#""Process Group Name":"5","Process Group Ranks":"[{ranks}]""#);
        let (low, high) = (group("0, 1"), group("2, 3"));
        let timeline = timeline(&[
            (0, 100.0, 50.0, NCCL, &low),
            (1, 140.0, 10.0, NCCL, &low),
            (2, 100.0, 5.0, NCCL, &high),
            (3, 100.0, 25.0, NCCL, &high),
        ]);
        let (rows, _) = rows(&timeline, &WAITS);
        let pairs: Vec<_> = rows.iter().map(|row| row[..2].to_vec()).collect();
        assert_eq!(
            pairs,
            [
                vec![Cell::from(0u32), Cell::from(1u32)],
                vec![Cell::from(3u32), Cell::from(2u32)],
            ]
        );
    }

    #[test]
    fn bandwidth_is_nccl_tests() {
        let args = r#""Collective name":"allreduce","In msg nelems":1000000,"Out msg nelems":1000000,"Group size":4,"dtype":"Float","Process Group Description":"default_pg""#;
        let all = [0, 1, 2, 3].map(|rank| {
            (
                rank,
                100.0 + f64::from(rank),
                103.0 - f64::from(rank),
                NCCL,
                args,
            )
        });
        let (rows, _) = rows(&timeline(&all), &COLLECTIVES);
        // 4 MB in 100 us: 40 GB/s, of which each link carries 2 * 3 / 4.
        assert_eq!(
            rows,
            [vec![
                "allreduce".into(),
                "default_pg".into(),
                4u64.into(),
                "Float".into(),
                4_000_000u64.into(),
                1u64.into(),
                100.0.into(),
                100.0.into(),
                Cell::Number(6.0),
                40.0.into(),
                60.0.into(),
            ]]
        );
    }

    #[test]
    fn balance_is_beside_the_mean() {
        let timeline = timeline(&[
            (0, 0.0, 100.0, "gemm", ""),
            (1, 0.0, 300.0, "gemm", ""),
            (0, 100.0, 210.0, NCCL, ""),
            (1, 300.0, 10.0, NCCL, ""),
        ]);
        let (rows, notes) = rows(&timeline, &BALANCE);
        let of = |at: usize, columns: &[usize]| -> Vec<Cell> {
            columns
                .iter()
                .map(|column| rows[at][*column].clone())
                .collect()
        };
        // Rank, compute, of the mean, waiting.
        let columns = [0, 2, 3, 5];
        assert_eq!(
            of(0, &columns),
            [0u32.into(), 100.0.into(), 50.0.into(), Cell::Number(200.0)]
        );
        assert_eq!(
            of(1, &columns),
            [1u32.into(), 300.0.into(), 150.0.into(), Cell::Number(0.0)]
        );
        assert_eq!(
            notes,
            ["the rank with the most compute time has 1.500 times the mean"]
        );
    }
}
