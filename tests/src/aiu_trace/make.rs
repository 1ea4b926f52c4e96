//! Plays a scenario.

use std::collections::BTreeMap;

use super::clock::{Clock, Step, WRAP};
use super::collective;
use super::power;
use super::rng::Rng;
use super::scenario::{Latency, Scenario};
use super::story::{Event, Job, Kind, Rank, Story};

/// Kernels of the iterations, in their order. acelyzer writes a word of letters
/// that follow from the names' hashes; under PYTHONHASHSEED=0 these all differ.
const KERNELS: [&str; 13] = [
    "convolution_1",
    "add_2",
    "relu_3",
    "mul_4",
    "addmm_MatMul",
    "bmm_5",
    "softmax_6",
    "layernorm_7",
    "gelu_8",
    "mean",
    "view_9",
    "sub_10",
    "exp_11",
];

/// The time that the last counters of an operation take beyond its end.
pub(super) const TAIL_US: f64 = 0.02;

/// A scenario while it is played.
#[derive(Debug)]
pub(super) struct Player<'a> {
    pub(super) scenario: &'a Scenario,
    pub(super) rng: Rng,
    pub(super) story: Story,
    latencies: BTreeMap<(usize, usize), f64>,
    next_correlation: u64,
    /// Numbers that make names of messages unique.
    pub(super) next_message: usize,
}

impl Scenario {
    /// Plays it.
    #[must_use]
    pub fn make(&self) -> Story {
        let mut player = Player::new(self);
        let mut at_us = self.start_us;
        for job in 0..self.jobs {
            at_us = player.job(job, at_us) + self.gap_us;
        }
        player.finish()
    }

    /// The kernels of an iteration: name, and its length in microseconds.
    #[must_use]
    pub fn kernel_lengths(&self) -> Vec<(&'static str, f64)> {
        let mut rng = Rng::new(self.seed ^ 0x6b65_726e);
        let names = KERNELS.iter().cycle().take(self.kernels);
        let (low, high) = self.kernel_us;
        names.map(|name| (*name, rng.between(low, high))).collect()
    }
}

impl<'a> Player<'a> {
    fn new(scenario: &'a Scenario) -> Self {
        let mut rng = Rng::new(scenario.seed);
        let ranks = (0..scenario.ranks)
            .map(|rank| {
                let random = rng.below(3 << 31) as u64;
                Rank {
                    clock: Clock {
                        mhz: rng.between(scenario.mhz.0, scenario.mhz.1),
                        drift_ppm_per_s: scenario.drift_ppm_per_s,
                        // Room for what happens before.
                        start_us: scenario.start_us - 1000.0,
                        start_cycles: scenario.start_cycles.unwrap_or(WRAP + random),
                        steps: Vec::new(),
                    },
                    offset_us: if rank == 0 {
                        0.0
                    } else {
                        rng.jitter(scenario.offset_us)
                    },
                }
            })
            .collect();
        Self {
            scenario,
            rng,
            story: Story {
                seed: scenario.seed,
                ranks,
                ..Story::default()
            },
            latencies: BTreeMap::new(),
            next_correlation: 1,
            next_message: 82_227,
        }
    }

    /// One job of every rank; returns when the last one ended.
    fn job(&mut self, job: usize, at_us: f64) -> f64 {
        let mut ends: Vec<(f64, f64)> = Vec::new();
        for rank in 0..self.scenario.ranks {
            let start = at_us + self.rng.between(0.0, 200.0);
            ends.push((start, self.compute(rank, job, start + 40.0)));
        }
        let mut ready: Vec<f64> = ends.iter().map(|(_, end)| *end).collect();
        if let Some(collectives) = self.scenario.collectives {
            for group in 0..collectives.groups {
                collective::play(self, collectives, job, group, &mut ready);
            }
        }
        for (rank, (start, _)) in ends.iter().enumerate() {
            let end = ready.get(rank).copied().unwrap_or(*start);
            self.roundtrips(rank, job, *start, end + 30.0);
        }
        ready.iter().copied().fold(at_us, f64::max)
    }

    /// The kernels of a job; returns when the device was ready.
    fn compute(&mut self, rank: usize, job: usize, mut at_us: f64) -> f64 {
        let kernels = self.scenario.kernel_lengths();
        let transfer = self.rng.between(20.0, 90.0);
        let ends = [at_us, at_us + transfer];
        self.dma_in(rank, job, "Input_0 DmaI".to_owned(), ends, Vec::new());
        at_us += transfer;
        for _ in 0..self.scenario.iterations {
            let correlation = self.next_correlation;
            self.next_correlation += 1;
            for (name, length) in &kernels {
                at_us += self
                    .rng
                    .between(self.scenario.pause_us.0, self.scenario.pause_us.1);
                let end = at_us + length * self.rng.between(0.98, 1.02);
                self.kernel(rank, job, name, [at_us, end], correlation, Vec::new());
                at_us = end;
            }
        }
        at_us += 10.0;
        let end = at_us + self.rng.between(20.0, 90.0);
        let name = "Output_0 DmaO".to_owned();
        self.dma_out(rank, job, name, [at_us, end], Vec::new());
        end
    }

    /// A kernel with its preparation before it.
    pub(super) fn kernel(
        &mut self,
        rank: usize,
        job: usize,
        name: &str,
        [start, end]: [f64; 2],
        correlation: u64,
        args: Vec<(&'static str, String)>,
    ) {
        let (low, high) = self.scenario.prep_us;
        let prep = start - self.rng.between(low, high);
        let times = [prep, prep, start, end, end + TAIL_US];
        for (kind, suffix) in [(Kind::Prep, "Cmpt Prep"), (Kind::Exec, "Cmpt Exec")] {
            let name = format!("{name} {suffix}");
            self.device(rank, job, name, kind, times, args.clone());
            if let Some(event) = self.story.events.last_mut() {
                event.correlation = correlation;
            }
        }
    }

    /// A transfer to the device.
    pub(super) fn dma_in(
        &mut self,
        rank: usize,
        job: usize,
        name: String,
        [start, end]: [f64; 2],
        args: Vec<(&'static str, String)>,
    ) {
        let after = end + TAIL_US;
        let times = [start, end, after, after, after + TAIL_US];
        self.device(rank, job, name, Kind::DmaIn, times, args);
    }

    /// A transfer from the device.
    pub(super) fn dma_out(
        &mut self,
        rank: usize,
        job: usize,
        name: String,
        [start, end]: [f64; 2],
        args: Vec<(&'static str, String)>,
    ) {
        let queued = start - 2.0;
        let times = [queued, queued, start, start, end];
        self.device(rank, job, name, Kind::DmaOut, times, args);
    }

    fn device(
        &mut self,
        rank: usize,
        job: usize,
        name: String,
        kind: Kind,
        times: [f64; 5],
        args: Vec<(&'static str, String)>,
    ) {
        let Some(of) = self.story.ranks.get(rank) else {
            return;
        };
        let (first, last) = kind.phase();
        let (start_us, end_us) = (times[first], times[last]);
        let cycles = times.map(|at| of.clock.cycles(at));
        let host_end = end_us
            + of.offset_us
            + self.scenario.shift_us(job)
            + self.rng.jitter(self.scenario.jitter_us);
        let late = self.rng.jitter(self.scenario.begin_jitter_us);
        let host_dur_us = nanoseconds((end_us - start_us - late).max(0.001));
        self.story.events.push(Event {
            rank,
            job,
            name,
            kind,
            start_us,
            end_us,
            cycles: Some(cycles),
            charge: None,
            host_ts_us: nanoseconds(host_end - host_dur_us),
            host_dur_us,
            args,
            correlation: 0,
        });
    }

    /// What the host saw around a job.
    fn roundtrips(&mut self, rank: usize, job: usize, start: f64, end: f64) {
        let Some(of) = self.story.ranks.get(rank) else {
            return;
        };
        let offset = of.offset_us;
        self.story.jobs.push(Job {
            rank,
            job,
            shift_us: self.scenario.shift_us(job),
            roundtrip_us: (start, end),
        });
        let events = [
            ("Flex RoundTrip", start - 25.0, end + 25.0),
            ("Compute of Convert_0", start - 20.0, start - 10.0),
            ("AIU Roundtrip", start, end),
        ];
        for (name, start_us, end_us) in events {
            self.story.events.push(Event {
                rank,
                job,
                name: name.to_owned(),
                kind: Kind::Cpu,
                start_us,
                end_us,
                cycles: None,
                charge: None,
                host_ts_us: nanoseconds(start_us + offset),
                host_dur_us: nanoseconds(end_us - start_us),
                args: Vec::new(),
                correlation: 0,
            });
        }
    }

    /// How long a message is under way.
    pub(super) fn latency(&mut self, latency: Latency, from: usize, to: usize) -> f64 {
        let ordered = (from.min(to), from.max(to));
        let (key, low, high) = match latency {
            Latency::Equal(us) => return us,
            Latency::Symmetric(low, high) => (ordered, low, high),
            Latency::Directed(low, high) => ((from, to), low, high),
        };
        let fresh = self.rng.between(low, high);
        *self.latencies.entry(key).or_insert(fresh)
    }

    fn finish(mut self) -> Story {
        self.step();
        power::charge(&mut self.story, self.scenario, &mut self.rng);
        self.story.jobs.sort_by_key(|job| (job.rank, job.job));
        self.story.events.sort_by(|a, b| {
            let key = |event: &Event| (event.rank, event.job);
            key(a)
                .cmp(&key(b))
                .then(a.host_ts_us.total_cmp(&b.host_ts_us))
        });
        self.story
    }

    /// Lets the counters jump, once it is known when the trace ends.
    fn step(&mut self) {
        let Some((part, cycles)) = self.scenario.step else {
            return;
        };
        let start = self.scenario.start_us;
        let ends = self.story.events.iter().map(|event| event.end_us);
        let at_us = start + (ends.fold(start, f64::max) - start) * part;
        for rank in &mut self.story.ranks {
            rank.clock.steps.push(Step { at_us, cycles });
        }
        for event in &mut self.story.events {
            // A jump inside an event would not be seen as one: events keep whole.
            if let Some(shown) = event.cycles.as_mut().filter(|_| event.start_us >= at_us) {
                *shown = shown.map(|c| c.saturating_add_signed(cycles));
            }
        }
    }
}

impl Scenario {
    fn shift_us(&self, job: usize) -> f64 {
        let shifts = self.shifts_us.iter().filter(|(of, _)| *of == job);
        shifts.map(|(_, us)| us).sum()
    }
}

/// A time as files have it: three digits after the point.
fn nanoseconds(us: f64) -> f64 {
    (us * 1000.0).round() / 1000.0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::aiu_trace::scenario::Charge;

    #[test]
    fn a_story_follows_from_its_seed_and_its_parts_agree() {
        let scenario = Scenario {
            ranks: 2,
            jobs: 3,
            shifts_us: vec![(1, 50_000.0)],
            mhz: (400.0, 1500.0),
            ..Scenario::default()
        };
        let story = scenario.make();
        assert_eq!(format!("{story:?}"), format!("{:?}", scenario.make()));
        let kernels = 2 * 3 * 5 * 8;
        assert_eq!(story.events.len(), 2 * kernels + 2 * 3 * (2 + 3));
        for event in story.events.iter().filter(|event| event.on_device()) {
            let clock = &story.ranks[event.rank].clock;
            let (first, last) = event.kind.phase();
            let cycles = event.cycles.unwrap();
            assert!(cycles.is_sorted(), "{event:?}");
            let counted = (cycles[last] - cycles[first]) as f64 / clock.mhz;
            assert!((counted - event.dur_us()).abs() < 0.003, "{event:?}");
            let shift = if event.job == 1 { 50_000.0 } else { 0.0 };
            let seen = event.host_ts_us - event.start_us - shift;
            assert!(seen.abs() < 0.002, "{event:?}");
        }
        let charged = story.events.iter().filter(|event| event.charge.is_some());
        assert_eq!(charged.count(), 2 * kernels + 2 * 3 * 2);
        assert!(Charge::Nano.per_us_and_watt() > 186.0 * Charge::Micro.per_us_and_watt());
    }

    #[test]
    fn jobs_and_their_events_nest() {
        let story = Scenario::default().make();
        let job = &story.jobs[0];
        for event in story.events.iter().filter(|event| event.on_device()) {
            assert!(event.start_us > job.roundtrip_us.0, "{event:?}");
            assert!(event.end_us < job.roundtrip_us.1, "{event:?}");
        }
    }
}
