//! Messages of MPI between ranks, and the clocks that they aligned.

use super::{Request, Table, TableEntry};
use aiprof_trace::mpi::{MpiTraffic, PairedMessage};
use std::collections::BTreeMap;

/// `--table messages`.
pub(super) const ENTRY: TableEntry = TableEntry {
    name: "messages",
    about: "messages between ranks by pair, call and size: number, bytes, time, waits, bandwidth",
    title: "Messages between ranks",
    columns: "from to call bytes count total_bytes time:us mean:us receiver_waiting:us \
              sender_waiting:us bandwidth:GB/s:3",
    make,
};

/// `--table clocks`.
pub(super) const CLOCKS: TableEntry = TableEntry {
    name: "clocks",
    about: "clocks of recordings, aligned by messages: shift, drift, error bound",
    title: "Clocks of recordings",
    columns: "recording ranks shift:us drift:ppm:3 error:us error_anywhere:us bounds",
    make: make_clocks,
};

/// Which messages are alike.
type Alike = (u32, u32, String, Option<u64>);

/// What messages that are alike took.
#[derive(Default)]
struct MessageSum {
    count: u64,
    /// Those whose arrival was seen.
    arrived: u64,
    /// From when both sides were there, microseconds.
    us: f64,
    receiver_us: f64,
    sender_us: f64,
}

impl MessageSum {
    fn add(&mut self, message: &PairedMessage) {
        self.count += 1;
        if let Some(over) = message.arrived {
            self.arrived += 1;
            let begin = message.send.begin.max(message.receive.begin);
            self.us += (over.end - begin).micros().max(0.0);
        }
        self.receiver_us += message.receiver_waits().map_or(0.0, |(_, us)| us);
        self.sender_us += message.sender_waits().map_or(0.0, |(_, us)| us);
    }
}

/// What could not be matched, in words.
pub(super) fn notes(traffic: &MpiTraffic) -> Vec<String> {
    let found = &traffic.unmatched;
    let all = [
        (found.sends, "sends have no receive in these recordings"),
        (found.receives, "receives have no send in these recordings"),
        (
            found.unknown_senders,
            "receives from any source are left out: their sender is unknown, because the program \
             ignored their status or their end was not recorded",
        ),
        (
            found.unknown_ranks,
            "sends and receives are left out: their ranks in the communicator are unknown",
        ),
        (
            found.collectives,
            "collective calls are left out: ranks have different numbers of them",
        ),
        (
            found.by_number,
            "messages are matched by equal numbers of sends and receives, because the start of the \
             run was not recorded",
        ),
    ];
    let some = all.into_iter().filter(|(count, _)| *count > 0);
    some.map(|(count, what)| format!("{count} {what}"))
        .collect()
}

fn make(request: &Request<'_>) -> Vec<Table> {
    let traffic = &request.outcome.mpi;
    let mut sums: BTreeMap<Alike, MessageSum> = BTreeMap::new();
    for message in &traffic.messages {
        let name = request.timeline.name(message.send.name);
        let name = name.strip_prefix('P').unwrap_or(name).to_owned();
        let alike = (message.from, message.to, name, message.bytes);
        sums.entry(alike).or_default().add(message);
    }
    let rows = sums.into_iter().map(|((from, to, name, bytes), sum)| {
        let mean = (sum.arrived > 0).then(|| sum.us / sum.arrived as f64);
        // Bytes by microseconds are megabytes by seconds.
        let speed = bytes.zip(mean.filter(|us| *us > 0.0));
        vec![
            from.into(),
            to.into(),
            name.into(),
            bytes.into(),
            sum.count.into(),
            bytes.and_then(|bytes| bytes.checked_mul(sum.count)).into(),
            sum.us.into(),
            mean.into(),
            sum.receiver_us.into(),
            sum.sender_us.into(),
            speed.map(|(bytes, us)| bytes as f64 / us / 1000.0).into(),
        ]
    });
    let rows: Vec<_> = rows.collect();
    let mut notes = notes(traffic);
    if rows.is_empty() && notes.is_empty() {
        notes.push("no MPI messages in the input".to_owned());
    }
    vec![ENTRY.noted(rows, notes)]
}

fn make_clocks(request: &Request<'_>) -> Vec<Table> {
    let found = request.outcome.clocks.as_ref();
    let clocks = found.map_or(&[][..], |found| &found.clocks);
    let rows = clocks.iter().map(|clock| {
        let job = request.timeline.jobs.get(clock.job as usize);
        let ranks: Vec<String> = clock.ranks.iter().map(u32::to_string).collect();
        let line = clock
            .line
            .filter(|_| found.is_some_and(|found| found.is_done));
        let finite = |us: f64| us.is_finite().then_some(us);
        let error = line.and_then(|line| finite(line.error_us));
        let anywhere = line.and_then(|line| finite(line.error_anywhere_us));
        vec![
            job.map_or("", |job| job.path.as_str()).into(),
            ranks.join(",").into(),
            line.map(|line| line.us).into(),
            line.map(|line| line.rate * 1e6).into(),
            error.into(),
            anywhere.into(),
            clock.bounds.into(),
        ]
    });
    let mut notes = Vec::new();
    match found {
        None => notes.push("no messages between recordings".to_owned()),
        Some(found) if !found.is_done => {
            let us = found.contradiction_us;
            notes.push(format!(
                "not aligned: messages contradict each other by {us:.3} us"
            ));
        }
        Some(found) => notes.push(format!(
            "messages that arrive before they were sent: {} before alignment, {} after; messages \
             contradict each other by {:.3} us",
            found.reversed_before, found.reversed_after, found.contradiction_us
        )),
    }
    vec![CLOCKS.noted(rows, notes)]
}
