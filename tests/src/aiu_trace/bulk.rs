//! Large files for measurements: as many events as asked for, written as they are
//! made.

use std::io::Write;

use super::clock::WRAP;
use super::rng::Rng;

/// Kernels take turns.
const KERNELS: [&str; 12] = [
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
];
/// The device's frequency.
const MHZ: f64 = 557.05;
/// When the trace begins, in microseconds.
const START_US: f64 = 1_475_000_000_000.0;
/// Kernels of one launch.
const PER_LAUNCH: u64 = 24;

/// One kernel after the other.
struct Kernels {
    rng: Rng,
    at_us: f64,
    charge: u64,
}

struct Kernel {
    name: &'static str,
    ts: f64,
    dur: f64,
    cycles: [u64; 5],
    charge: u64,
}

impl Kernels {
    fn new() -> Self {
        Self {
            rng: Rng::new(450),
            at_us: START_US,
            charge: 0x438d_671c,
        }
    }

    fn next(&mut self, number: u64) -> Kernel {
        let name = KERNELS[(number % KERNELS.len() as u64) as usize];
        self.at_us += self.rng.between(2.0, 9.0);
        let dur = self.rng.between(20.0, 60.0);
        let ts = self.at_us;
        self.at_us += dur;
        // 50 W.
        self.charge += ((dur + 5.0) * 50.0 * 512.0 / 12.0) as u64;
        let counter = |us: f64| ((us - START_US + 1000.0) * MHZ) as u64 + 3_228_353_039;
        let (queued, start, end) = (counter(ts - 1.5), counter(ts), counter(ts + dur));
        Kernel {
            name,
            ts,
            dur,
            cycles: [queued, queued, start, end, end + 6].map(|c| c % WRAP),
            charge: self.charge % WRAP,
        }
    }
}

/// Writes a FLEX list of `events` events, each a `B` and an `E` line of 225
/// bytes.
///
/// # Errors
/// When it cannot be written.
pub fn flex(to: &mut impl Write, events: u64) -> std::io::Result<()> {
    let mut kernels = Kernels::new();
    to.write_all(b"[\n")?;
    for number in 0..events {
        let kernel = kernels.next(number);
        let [ts1, ts2, ts3, ts4, ts5] = kernel.cycles;
        for (phase, ts) in [('B', kernel.ts), ('E', kernel.ts + kernel.dur)] {
            let end = if phase == 'E' && number + 1 == events {
                "\n"
            } else {
                ",\n"
            };
            write!(
                to,
                "{{\"attr\":{{\"Power\":\"{:#x}\",\"TS1\":\"{ts1:#x}\",\"TS2\":\"{ts2:#x}\",\
                 \"TS3\":\"{ts3:#x}\",\"TS4\":\"{ts4:#x}\",\"TS5\":\"{ts5:#x}\"}},\
                 \"name\":\"{} Cmpt Exec\",\"ph\":\"{phase}\",\"pid\":0,\
                 \"tid\":2009867741857745393,\"ts\":{ts:.3}}}{end}",
                kernel.charge, kernel.name,
            )?;
        }
    }
    to.write_all(b"]\n")
}

/// Writes a TORCH object of `events` events of about 200 bytes: kernels, and their
/// launches with arrows.
///
/// # Errors
/// When it cannot be written.
pub fn torch(to: &mut impl Write, events: u64) -> std::io::Result<()> {
    let mut kernels = Kernels::new();
    to.write_all(
        b"{\"schemaVersion\": 1, \"deviceProperties\": [{\"id\": 0, \"name\": \"AIU\"}], \
          \"distributedInfo\": {\"rank\": 0}, \"displayTimeUnit\": \"ms\", \"traceEvents\": [\n",
    )?;
    let mut written = 0;
    let mut number = 0;
    let mut separator = "";
    while written < events {
        let correlation = number / PER_LAUNCH + 1;
        let kernel = kernels.next(number);
        if number % PER_LAUNCH == 0 && written + 2 < events {
            let ts = kernel.ts - 2.0;
            write!(
                to,
                "{separator}{{\"ph\":\"X\",\"cat\":\"privateuse1_runtime\",\
                 \"name\":\"aiuLaunchControlBlocks\",\"pid\":4242,\"tid\":4243,\"ts\":{ts:.3},\
                 \"dur\":1.500,\"args\":{{\"num_cbs\":24,\"cbid\":17,\"External id\":{number},\
                 \"correlation\":{correlation}}}}},\n\
                 {{\"ph\":\"s\",\"id\":{correlation},\"pid\":4242,\"tid\":4243,\"ts\":{ts:.3},\
                 \"cat\":\"ac2g\",\"name\":\"ac2g\"}}",
            )?;
            separator = ",\n";
            written += 2;
        }
        write!(
            to,
            "{separator}{{\"ph\":\"X\",\"cat\":\"kernel\",\"name\":\"{}\",\"pid\":0,\"tid\":1,\
             \"ts\":{:.3},\"dur\":{:.3},\"args\":{{\"External id\":{number},\"queued\":0,\
             \"device\":0,\"context\":1,\"stream\":1,\"correlation\":{correlation}}}}}",
            kernel.name, kernel.ts, kernel.dur,
        )?;
        separator = ",\n";
        written += 1;
        number += 1;
    }
    to.write_all(b"\n], \"traceName\": \"bulk.pt.trace.json\"}\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    #[test]
    fn files_have_the_events_and_sizes_they_promise() {
        let mut text = Vec::new();
        flex(&mut text, 2000).unwrap();
        let list: Vec<Value> = serde_json::from_slice(&text).unwrap();
        assert_eq!(list.len(), 4000);
        let size = text.len() / 2000;
        assert!((430..470).contains(&size), "{size}");
        let mut text = Vec::new();
        torch(&mut text, 2000).unwrap();
        let trace: Value = serde_json::from_slice(&text).unwrap();
        assert_eq!(trace["traceEvents"].as_array().unwrap().len(), 2000);
        let size = text.len() / 2000;
        assert!((180..220).contains(&size), "{size}");
    }
}
