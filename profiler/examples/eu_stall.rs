//! Measures how fast aiprof decodes and adds up generated stall records, for
//! `cargo xtask bench device`. The argument is the number of rounds. For each
//! round it prints a line: layout, addresses, million records a second. Then it
//! measures the whole path, to launches and names of instructions: `joined`.
//!
//! `feed RATE SECONDS FIFO...` instead writes RATE records a second into the
//! FIFOs in turn. It drops what is not read in time, as a device does, and
//! prints how many records it wrote and dropped.

#![allow(clippy::disallowed_methods, reason = "not part of the program")]

use aiprof::correlate::device::{Begun, Join, JoinLimits, PARTS, Placement, Share, Waited};
use aiprof::eu_stall::{Layout, RECORD_SIZE, Sums};
use aiprof::symbolize::device::{Module, isa};
use aiprof::wire::{DeviceStream, StallWindow};
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Records that are generated: 64 MiB, more than caches can hold.
const RECORDS: usize = 1 << 20;
/// Records of a window: about 20 ms of a busy device at 200 MB/s.
const WINDOW: usize = 1 << 16;
/// Most addresses of a stream.
const MAX_ADDRESSES: usize = 1 << 18;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    if let [feed, rate, seconds, fifos @ ..] = words.as_slice()
        && feed == "feed"
    {
        let numbers = rate.parse().ok().zip(seconds.parse().ok());
        let Some((rate, seconds)) = numbers else {
            return ExitCode::FAILURE;
        };
        return match feed_fifos(fifos, rate, seconds) {
            Ok((written, dropped)) => {
                println!("{written} {dropped}");
                ExitCode::SUCCESS
            }
            Err(error) => {
                eprintln!("{fifos:?}: {error}");
                ExitCode::FAILURE
            }
        };
    }
    let rounds = std::env::args().nth(1).and_then(|n| n.parse::<u32>().ok());
    for layout in [Layout::Pvc, Layout::Xe2, Layout::Xe3p] {
        for addresses in [1_000, 10_000, 100_000] {
            let records = generate(layout, addresses);
            let mut sums = Sums::new(layout, RECORD_SIZE, MAX_ADDRESSES);
            for _ in 0..rounds.unwrap_or(1) {
                let start = Instant::now();
                let mut samples = 0_u64;
                for window in records.chunks(WINDOW * RECORD_SIZE) {
                    sums.add(window);
                    let counts = sums.take(0).counts;
                    samples += counts
                        .iter()
                        .flat_map(|c| c.counts)
                        .map(u64::from)
                        .sum::<u64>();
                }
                let seconds = start.elapsed().as_secs_f64();
                // Each record has one sample.
                if samples != RECORDS as u64 {
                    eprintln!("{layout}: {samples} samples of {RECORDS}");
                    return ExitCode::FAILURE;
                }
                let rate = RECORDS as f64 / seconds / 1e6;
                println!("{layout} {addresses} {rate:.1}");
            }
        }
    }
    for addresses in [1_000, 10_000] {
        for _ in 0..rounds.unwrap_or(1) {
            let Some(rate) = joined(addresses) else {
                eprintln!("joined: samples are missing");
                return ExitCode::FAILURE;
            };
            println!("joined {addresses} {rate:.1}");
        }
    }
    ExitCode::SUCCESS
}

/// Bytes that a FIFO holds: as many as xe buffers for two XeCores.
const FIFO_BYTES: usize = 1 << 20;
/// Records in one write.
const PIECE: usize = 1 << 10;

/// Writes `rate` records a second. Returns how many were written, and how many
/// found no room.
fn feed_fifos(fifos: &[String], rate: u64, seconds: u64) -> std::io::Result<(u64, u64)> {
    let records = generate(Layout::Xe2, 10_000);
    let nonblocking = rustix::fs::OFlags::NONBLOCK.bits().cast_signed();
    let open = |path: &String| {
        let mut options = std::fs::File::options();
        let fifo = options.write(true).custom_flags(nonblocking).open(path)?;
        rustix::pipe::fcntl_setpipe_size(&fifo, FIFO_BYTES)?;
        Ok(fifo)
    };
    let fifos = fifos
        .iter()
        .map(open)
        .collect::<std::io::Result<Vec<_>>>()?;
    let (start, all) = (Instant::now(), rate * seconds);
    let (mut written, mut dropped) = (0, 0);
    let pieces = records.chunks(PIECE * RECORD_SIZE).cycle();
    for (piece, mut fifo) in pieces.zip(fifos.iter().cycle()) {
        let done = written + dropped;
        if done >= all {
            break;
        }
        let due = start + Duration::from_nanos(done * 1_000_000_000 / rate);
        if let Some(wait) = due.checked_duration_since(Instant::now()) {
            std::thread::sleep(wait.max(Duration::from_millis(1)));
        }
        // A FIFO may take only a part; only whole records count.
        let took = match fifo.write(piece) {
            Ok(took) => took,
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => 0,
            Err(error) => return Err(error),
        };
        let whole = took.next_multiple_of(RECORD_SIZE);
        if let Some(rest) = piece.get(took..whole).filter(|rest| !rest.is_empty()) {
            while fifo.write(rest).is_err() {
                std::thread::yield_now();
            }
        }
        written += (whole / RECORD_SIZE) as u64;
        dropped += ((piece.len() - whole) / RECORD_SIZE) as u64;
    }
    Ok((written, dropped))
}

/// Nanoseconds of a window: xe's polling interval.
const WINDOW_NS: u64 = 5_000_000;
/// Kernels; each has its part of the addresses.
const KERNELS: u64 = 20;
/// Call paths that launch each kernel.
const PATHS: u32 = 4;

/// The kernel `index`, with all addresses that [`generate`] gives it.
fn kernel(index: u64, addresses: u64) -> Placement {
    let each = addresses.div_ceil(KERNELS) * 16;
    let start = 0x8000 + index * each;
    Placement {
        pid: 1,
        kernel: index,
        code: u32::try_from(index).unwrap_or(0),
        start,
        last: start + each - 1,
        base: 0,
        since_ns: 0,
        until_ns: u64::MAX,
    }
}

/// Joins four seconds of windows of [`WINDOW`] records each. It starts from
/// bytes, and ends with rows by call path and instruction, and with the lines
/// and mnemonics of those. Returns million records a second; `None` if anything
/// is missing.
fn joined(addresses: u64) -> Option<f64> {
    let records = generate(Layout::Xe2, addresses);
    let packed = &include_bytes!("../../tests/data/zebin/bmg.zebin.gz")[..];
    let mut module = Vec::new();
    flate2::read::GzDecoder::new(packed)
        .read_to_end(&mut module)
        .ok()?;
    let module = Module::parse(&module).ok()?;
    let start = Instant::now();
    let mut sums = Sums::new(Layout::Xe2, RECORD_SIZE, MAX_ADDRESSES);
    let mut join = Join::new(JoinLimits::default());
    join.stream(&DeviceStream {
        id: 0,
        name: String::new(),
        device: 0,
        card: 0,
        gt: 0,
        relative: true,
        cycles_per_sample: 0,
        replayed: None,
    });
    (0..KERNELS).for_each(|index| join.placed(kernel(index, addresses)));
    let mut rows: BTreeMap<(u32, u64), u64> = BTreeMap::new();
    let mut parts = 0;
    let mut take = |share: Share| {
        parts += share.parts;
        *rows
            .entry((share.code.unwrap_or(0), share.offset))
            .or_default() += share.parts;
    };
    let mut fed = 0;
    let windows = records.chunks(WINDOW * RECORD_SIZE).cycle().take(800);
    for (window, from_ns) in windows.zip((0..).step_by(WINDOW_NS as usize)) {
        // Each path launches every kernel. Now and then the program waits for the queue.
        for index in 0..KERNELS {
            for path in 0..PATHS {
                join.executions.begun(&Begun {
                    pid: 1,
                    kernel: index,
                    path,
                    submitted_ns: from_ns,
                    work: 1 + u64::from(path),
                    queue: 1,
                    device: 1,
                    event: 0,
                    submit: 0,
                });
            }
        }
        let to_ns = from_ns + WINDOW_NS - 1;
        if from_ns / WINDOW_NS % 10 == 9 {
            join.executions.ended(1, Waited::Queue(1), to_ns, to_ns);
        }
        sums.add(window);
        let stalls = StallWindow {
            from_ns,
            to_ns,
            counts: sums.take(0).counts,
            ..StallWindow::default()
        };
        fed += (window.len() / RECORD_SIZE) as u64;
        join.window(&stalls, &mut take);
        join.advance(to_ns, &mut take);
    }
    join.finish(&mut take);
    // Names, once for each instruction. The kernels of one real module are used
    // repeatedly.
    let code = module.kernels.iter().filter(|k| !k.code.is_empty());
    let code: Vec<_> = code.collect();
    let listings: Vec<_> = (0..KERNELS as usize)
        .filter_map(|i| {
            Some(isa::decode(
                &code.get(i % code.len())?.code,
                module.platform?,
            ))
        })
        .collect();
    let mut named = 0;
    for &(index, offset) in rows.keys() {
        let index = index as usize;
        let kernel = code.get(index % code.len())?;
        let offset = u32::try_from(offset % kernel.code.len().max(16) as u64).ok()?;
        named += kernel.source(offset).len();
        named += usize::from(listings.get(index)?.at(offset).is_some());
    }
    let rate = fed as f64 / start.elapsed().as_secs_f64() / 1e6;
    (parts == fed * PARTS && named > 0).then_some(rate)
}

/// Records at random addresses, each with one sample of a random reason.
fn generate(layout: Layout, addresses: u64) -> Vec<u8> {
    let bits = if layout == Layout::Xe3p { 61 } else { 29 };
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut random = |below: u64| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 16) % below
    };
    let mut records = vec![0; RECORDS * RECORD_SIZE];
    for record in records.chunks_exact_mut(RECORD_SIZE) {
        // Instructions are 16 bytes long: two units of an address.
        let ip = 0x1000 + 2 * random(addresses);
        // The first eight counters are within the first 16 bytes of every
        // layout.
        let counter = bits + 8 * random(8);
        let words = u128::from(ip) | 1_u128 << counter;
        for (to, from) in record.iter_mut().zip(words.to_le_bytes()) {
            *to = from;
        }
    }
    records
}
