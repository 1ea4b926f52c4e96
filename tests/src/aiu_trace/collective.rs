//! Collective operations: who sends what to whom, and when.
//!
//! Names, arguments and the order of things are those of the shipped
//! `allreduce_tp4.json`.

use super::make::Player;
use super::scenario::{Collectives, Shape};
use super::story::Message;

/// Bytes of a message.
pub const BYTES: usize = 524_288;
/// How long a send takes, in microseconds.
const SEND_US: f64 = 40.0;
/// How long the sum of two buffers takes.
const ADD_US: f64 = 16.5;
/// Several commands of one send follow each other this closely.
const COMMAND_US: f64 = 0.1;

/// One operation while it is played.
struct Operation<'p, 'a, 'r> {
    player: &'p mut Player<'a>,
    collectives: Collectives,
    job: usize,
    /// Name of the operation.
    group: String,
    /// When each rank is ready for its next step.
    ready: &'r mut [f64],
    /// When each rank began to wait.
    posted: Vec<f64>,
    /// Number of the next synchronization.
    sync: usize,
}

/// Plays one operation of all ranks. On entry, `ready` holds when each rank has computed; on
/// return, when it has finished the operation.
pub(super) fn play(
    player: &mut Player<'_>,
    collectives: Collectives,
    job: usize,
    group: usize,
    ready: &mut [f64],
) {
    // acelyzer takes groups of one name for one operation, in whatever job.
    let number = 4 + job * collectives.groups + group;
    let mut operation = Operation {
        group: format!("AllReduce_all_reduce_{number}"),
        posted: Vec::new(),
        player,
        collectives,
        job,
        ready,
        sync: 0,
    };
    operation.summands();
    match collectives.shape {
        Shape::Chain => operation.chain(),
        Shape::Ring => operation.ring(),
        Shape::Tree => operation.tree(),
    }
}

impl Operation<'_, '_, '_> {
    /// The kernel whose result is exchanged, on every rank.
    fn summands(&mut self) {
        for rank in 0..self.ready.len() {
            let start = self.ready[rank] + self.player.rng.between(30.0, 200.0);
            let end = start + self.player.rng.between(480.0, 520.0);
            self.player
                .kernel(rank, self.job, "add_11", [start, end], 0, Vec::new());
            self.ready[rank] = end;
            self.posted.push(start);
        }
    }

    fn chain(&mut self) {
        let last = self.ready.len() - 1;
        for rank in 0..last {
            self.message(rank, rank + 1);
            self.sum(rank + 1);
        }
        self.multicast(last);
    }

    fn ring(&mut self) {
        let ranks = self.ready.len();
        for step in [1, ranks - 1] {
            for rank in 0..ranks {
                self.message(rank, (rank + step) % ranks);
            }
        }
        for rank in 0..ranks {
            self.sum(rank);
        }
    }

    fn tree(&mut self) {
        let ranks = self.ready.len();
        for child in (1..ranks).rev() {
            let parent = (child - 1) / 2;
            self.message(child, parent);
            self.sum(parent);
        }
        for child in 1..ranks {
            self.message((child - 1) / 2, child);
        }
    }

    fn next_sync(&mut self, from: usize, to: &str) -> String {
        let number = 2 * self.sync;
        self.sync += 1;
        format!("{}_s{from}_r{to}_{number}", self.group)
    }

    fn next_name(&mut self) -> usize {
        self.player.next_message += 1;
        self.player.next_message
    }

    fn args(&self, more: &[(&'static str, String)]) -> Vec<(&'static str, String)> {
        let mut args = vec![("CollGroup", self.group.clone())];
        args.extend_from_slice(more);
        args
    }

    /// Adds what was received, on the device.
    fn sum(&mut self, rank: usize) {
        let start = self.ready[rank] + 15.0;
        let name = format!("{}_Add_{}", self.group, 2 * rank + 1);
        let args = self.args(&[]);
        let end = start + ADD_US;
        self.player
            .kernel(rank, self.job, &name, [start, end], 0, args);
        self.ready[rank] = end;
    }

    fn message(&mut self, from: usize, to: usize) {
        let sync = self.next_sync(from, &to.to_string());
        let number = self.next_name();
        let start = self.ready[from] + 3.0;
        let end = start + SEND_US * self.player.rng.between(0.9, 1.1);
        let args = self.args(&[
            ("Bytes", BYTES.to_string()),
            ("Peer", to.to_string()),
            ("Type", "SingleCast".to_owned()),
        ]);
        let name = format!("SenRdmaSend_{number} [sync={sync}] DmaO");
        self.player
            .dma_out(from, self.job, name, [start, end], args);
        self.ready[from] = end;
        self.receive(from, to, &sync, end);
        // Who was late begins its next step when the message is there.
        self.ready[to] = self.ready[to].max(self.last_received());
    }

    /// The last rank's result to all others at once.
    fn multicast(&mut self, from: usize) {
        let others: Vec<usize> = (0..from).collect();
        let mask: u64 = others.iter().fold(0, |mask, rank| mask | 1 << rank);
        let first = others.first().copied().unwrap_or(0);
        let sync = self.next_sync(from, &format!("{first}x{mask:x}"));
        let number = self.next_name();
        let start = self.ready[from] + 3.0;
        let end = start + 1.8 * SEND_US;
        let peers = others.iter().map(ToString::to_string);
        let peers = peers.collect::<Vec<_>>().join(",");
        let mut commands = vec![(
            " - Set BcList".to_owned(),
            vec![("Peers", peers), ("Type", "Set BCList".to_owned())],
        )];
        commands.extend(others.iter().map(|to| {
            let kind = ("Type", "MultiCast XSEG".to_owned());
            let name = format!(" - Xseg to rank {to}");
            (name, vec![("Peer", to.to_string()), kind])
        }));
        let bytes = ("Bytes", BYTES.to_string());
        let data = vec![bytes, ("Type", "MultiCast".to_owned())];
        commands.push((" Data".to_owned(), data));
        let count = commands.len();
        for (i, (what, args)) in commands.into_iter().enumerate() {
            let name = format!("SenRdmaSend_{number}{what} [sync={sync}] DmaO");
            let begin = start + COMMAND_US * i as f64 / count as f64;
            let done = if i + 1 == count {
                end
            } else {
                begin + 0.24 * SEND_US + COMMAND_US * i as f64
            };
            let args = self.args(&args);
            self.player
                .dma_out(from, self.job, name, [begin, done], args);
        }
        self.ready[from] = end;
        for to in others {
            self.receive(from, to, &sync, end);
            self.ready[to] = self.ready[to].max(self.last_received());
        }
    }

    fn last_received(&self) -> f64 {
        let last = self.player.story.messages.last();
        last.map_or(f64::MIN, |message| message.received_us)
    }

    fn receive(&mut self, from: usize, to: usize, sync: &str, sent_us: f64) {
        let received_us = sent_us + self.player.latency(self.collectives.latency, from, to);
        let number = self.next_name();
        let args = self.args(&[
            ("Bytes", BYTES.to_string()),
            ("Peer", from.to_string()),
            ("Type", "WDone Barrier".to_owned()),
        ]);
        let name = format!("SenRdmaReceive_{number} [{BYTES}B] [sync={sync}] DmaI");
        let posted = self.posted[to].min(received_us - 1.0);
        self.player
            .dma_in(to, self.job, name, [posted, received_us], args);
        // Not at once: whether touching events overlap is up to the last digit.
        self.posted[to] = received_us + 0.5;
        self.player.story.messages.push(Message {
            group: self.group.clone(),
            sync: sync.to_owned(),
            from,
            to,
            sent_us,
            received_us,
        });
    }
}
