//! Synthetic windows: made up, for tests and benches. No number that comes of them is a
//! measurement of a real machine.

use aiprof_fleet::spool::{Body, BodyPacking, Queue};
use aiprof_formats::export::pprof::proto::{
    PprofFunction, PprofLabel, PprofLine, PprofLocation, PprofMapping, PprofProfile, PprofSample,
    PprofValueType,
};
use flate2::{Compression, write::GzEncoder};
use prost::Message as _;
use rustc_hash::FxHashMap;
use std::io::{self, Write as _};

/// Nanoseconds between two samples at 19 Hz.
pub const PERIOD: i64 = 52_631_579;

/// A minute.
const MINUTE_NS: u64 = 60_000_000_000;

/// Numbers that look random and are the same each time (splitmix64).
#[derive(Clone, Debug)]
pub struct Random(pub u64);

impl Random {
    /// The next.
    pub fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// One below a number.
    pub fn below(&mut self, n: usize) -> usize {
        (self.draw() % n.max(1) as u64) as usize
    }

    /// Between 0 and 1.
    pub fn unit(&mut self) -> f64 {
        (self.draw() >> 11) as f64 / (1_u64 << 53) as f64
    }
}

/// Programs that never were.
#[derive(Clone, Debug)]
pub struct Programs {
    /// Names of services.
    pub services: Vec<String>,
    /// Stacks, root first, as indices of functions; with the index of their service.
    pub stacks: Vec<(usize, Vec<u32>)>,
    /// Names of functions.
    pub functions: Vec<String>,
    /// Running sums of how often each stack is seen.
    sums: Vec<f64>,
}

impl Programs {
    /// Makes this many services, with this many stacks of 8 to 59 frames in all. The nth stack is
    /// seen about 1/n as often as the first.
    pub fn new(seed: u64, services: usize, stacks: usize) -> Self {
        let mut random = Random(seed);
        let words = [
            "parse", "request", "alloc", "hash", "join", "scan", "buffer", "tensor", "flush",
            "encode", "route", "lock", "poll", "merge", "index", "copy",
        ];
        let functions: Vec<String> = (0..3000)
            .map(|n| {
                let mut word = || words[random.below(words.len())];
                format!("{}::{}_{}::{}{n}", word(), word(), word(), word())
            })
            .collect();
        let services: Vec<String> = (0..services).map(|n| format!("service-{n:03}")).collect();
        let mut all: Vec<(usize, Vec<u32>)> = Vec::new();
        let mut last_of: FxHashMap<usize, usize> = FxHashMap::default();
        for _ in 0..stacks {
            let service = random.below(services.len());
            let depth = 8 + random.below(52);
            // Most of the way is that of another stack of the service.
            let mut stack = match last_of.get(&service).and_then(|at| all.get(*at)) {
                Some((_, last)) => last[..random.below(last.len())].to_vec(),
                None => Vec::new(),
            };
            while stack.len() < depth {
                stack.push(random.below(functions.len()) as u32);
            }
            stack.truncate(depth.max(8));
            last_of.insert(service, all.len());
            all.push((service, stack));
        }
        let mut sums = Vec::new();
        let mut sum = 0.0;
        for n in 0..stacks {
            sum += 1.0 / (n + 1) as f64;
            sums.push(sum);
        }
        Self {
            services,
            stacks: all,
            functions,
            sums,
        }
    }

    /// A stack, by how often it is seen.
    pub fn draw(&self, random: &mut Random) -> usize {
        let at = random.unit() * self.sums.last().copied().unwrap_or(0.0);
        let found = self.sums.partition_point(|sum| *sum < at);
        found.min(self.stacks.len().saturating_sub(1))
    }

    /// A window of 60 s that began then, as pprof, with `samples` samples on CPUs.
    pub fn window(&self, random: &mut Random, start_unix_ns: u64, samples: usize) -> Vec<u8> {
        let mut made = Made::default();
        made.text("");
        let types = [("samples", "count"), ("cpu", "nanoseconds")];
        for (name, unit) in types {
            let new = PprofValueType {
                r#type: made.text(name),
                unit: made.text(unit),
            };
            made.profile.sample_type.push(new);
        }
        for comment in [
            format!("aiprof.lost.ring_drops: {}", random.below(3)),
            format!(
                "aiprof.own_cpu_ns: {}",
                60_000_000 + random.below(1_000_000)
            ),
            format!("aiprof.period_ns: {PERIOD}"),
        ] {
            let at = made.text(&comment);
            made.profile.comment.push(at);
        }
        made.profile.time_nanos = start_unix_ns as i64;
        made.profile.duration_nanos = 60_000_000_000;
        let mapping = PprofMapping {
            id: 1,
            filename: made.text("/usr/bin/app"),
            has_functions: true,
            ..PprofMapping::default()
        };
        made.profile.mapping.push(mapping);
        for _ in 0..samples {
            let (service, stack) = &self.stacks[self.draw(random)];
            let name = &self.services[*service];
            let mut location_id: Vec<u64> = stack
                .iter()
                .map(|function| made.location(*function, &self.functions[*function as usize]))
                .collect();
            location_id.reverse();
            let pid = 1000 + *service as i64 * 10 + random.below(4) as i64;
            let label = [
                made.number("pid", pid),
                made.number("tid", pid * 100 + random.below(8) as i64),
                made.label("comm", &name[..name.len().min(15)]),
                made.label("thread", &format!("worker-{}", random.below(16))),
                made.label("service", name),
                made.label("container_name", name),
                made.label("pod_name", &format!("{name}-7d9f")),
                made.label("namespace", "shop"),
                made.label("version", "1.0"),
            ];
            made.profile.sample.push(PprofSample {
                location_id,
                value: vec![1, PERIOD],
                label: label.to_vec(),
            });
        }
        pack(&made.profile)
    }
}

/// Puts `minutes` minutes of windows of a host into a spool, from `begin_unix_ns` on; returns their
/// bytes.
///
/// # Errors
/// The spool cannot be written to.
pub fn spool(
    queue: &Queue,
    (programs, random): (&Programs, &mut Random),
    begin_unix_ns: u64,
    minutes: u64,
    samples: usize,
) -> io::Result<usize> {
    let mut bytes = 0;
    for minute in 0..minutes {
        // Windows do not begin at whole minutes to the nanosecond.
        let start_unix_ns = begin_unix_ns + minute * MINUTE_NS + random.draw() % 1_000_000;
        let window = programs.window(random, start_unix_ns, samples);
        bytes += window.len();
        let body = Body {
            start_unix_ns,
            number: minute,
            samples: samples as u64,
            kind: BodyPacking::Pprof,
        };
        queue.put(&body, &window)?;
    }
    Ok(bytes)
}

/// A profile as the agent's files have it.
pub fn pack(profile: &PprofProfile) -> Vec<u8> {
    let mut gzip = GzEncoder::new(Vec::new(), Compression::new(3));
    // Writing to memory does not fail.
    let _ = gzip.write_all(&profile.encode_to_vec());
    gzip.finish().unwrap_or_default()
}

/// A profile under construction.
#[derive(Debug, Default)]
pub struct Made {
    /// It.
    pub profile: PprofProfile,
    texts: FxHashMap<String, i64>,
    locations: FxHashMap<u32, u64>,
}

impl Made {
    /// The index of a text.
    pub fn text(&mut self, text: &str) -> i64 {
        if let Some(known) = self.texts.get(text) {
            return *known;
        }
        let new = self.profile.string_table.len() as i64;
        self.profile.string_table.push(text.to_owned());
        self.texts.insert(text.to_owned(), new);
        new
    }

    /// A label with a text.
    pub fn label(&mut self, key: &str, value: &str) -> PprofLabel {
        PprofLabel {
            key: self.text(key),
            str: self.text(value),
            ..PprofLabel::default()
        }
    }

    /// A label with a number.
    pub fn number(&mut self, key: &str, num: i64) -> PprofLabel {
        PprofLabel {
            key: self.text(key),
            num,
            ..PprofLabel::default()
        }
    }

    /// The location of a function.
    pub fn location(&mut self, function: u32, name: &str) -> u64 {
        if let Some(known) = self.locations.get(&function) {
            return *known;
        }
        let id = self.profile.location.len() as u64 + 1;
        let name = self.text(name);
        self.profile.function.push(PprofFunction {
            id,
            name,
            system_name: name,
            filename: 0,
        });
        self.profile.location.push(PprofLocation {
            id,
            mapping_id: 1,
            address: 4096 * id,
            line: vec![PprofLine {
                function_id: id,
                line: 7,
            }],
        });
        self.locations.insert(function, id);
        id
    }
}
