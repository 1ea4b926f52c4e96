//! EU stall sampling by Linux's xe driver (since 6.15): a stream for each GT.
//!
//! The driver looks at the hardware every 5 ms; what it has found by then can be read
//! without waiting. One stream can be open for a GT, for the whole machine.

use super::{
    feed::{Feed, StreamControl, Topic},
    recorder::{Shape, StreamRecorder},
    replay::{PERIOD, window_begin},
    xe_abi::{
        Abilities, Card, Chain, Driver, Gt, PROP_GT_ID, PROP_SAMPLE_RATE, PROP_WAIT_NUM_REPORTS,
        QUERY_EU_STALL, QUERY_GT_LIST, Stream, ask, main_gts,
    },
    xe_cards::XeCard,
};
use crate::bpf::perf::monotonic_ns;
use aiprof_model::{eu_stall::Layout, wire::DeviceStream};
use rustix::io::Errno;
use std::{
    sync::Arc,
    time::{Duration, Instant},
};

/// Device cycles between samples, if no other rate is wanted: the driver's own default.
const USUAL_CYCLES: u64 = 4 * 251;
/// How long samples lie in the hardware's buffer before they can be read: the driver
/// looks every 5 ms, which is 10 ms with a tick of 100 Hz (CONFIG_HZ).
const BUFFERED: Duration = Duration::from_millis(10);
/// Bytes read at once.
const PIECE: usize = 1 << 20;
/// Most reads for one window: more than the largest buffers hold.
const MAX_READS: usize = 256;
/// How long samples are waited for before the end is looked for.
const WAIT: Duration = Duration::from_millis(20);
/// How long a stream that fails is left alone: first, at most, and if another profiler
/// has it.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LAST_PAUSE: Duration = Duration::from_secs(10);
const BUSY_PAUSE: Duration = Duration::from_secs(2);

/// How cards are sampled.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct XeOptions {
    /// Device cycles between samples; the nearest that the hardware has is taken.
    pub(super) cycles: Option<u32>,
    /// Records of unknown devices are read as the nearest known device's.
    pub(super) nearest_layout: bool,
    /// Read only one record in this number; 0 and 1: all.
    pub(super) one_of: u32,
}

/// A GT that can be sampled.
pub(super) struct XeGt {
    card: Arc<dyn Card>,
    stream: DeviceStream,
    shape: Shape,
    rate: u64,
    one_of: u32,
}

/// The GTs of a card that can be sampled, or why there is none.
pub(super) fn gts(
    driver: &dyn Driver,
    found: &XeCard,
    index: u32,
    options: &XeOptions,
) -> Result<Vec<XeGt>, String> {
    let because = |text: String| format!("xe {} is not sampled: {text}.", found.address);
    if found.is_virtual {
        return Err(because(NO_VIRTUAL.into()));
    }
    let node = found.node.display();
    let card = driver.open(&found.node);
    let card: Arc<dyn Card> = card.map_err(|e| because(format!("{node}: {e}")))?.into();
    let answer = ask(&*card, QUERY_EU_STALL).map_err(|e| because(explain_query(e)))?;
    let abilities = Abilities::parse(&answer);
    let abilities = abilities.ok_or_else(|| because("the driver's answer is too short".into()))?;
    let list = ask(&*card, QUERY_GT_LIST)
        .map_err(|e| because(format!("the driver does not list the GTs: {e}")))?;
    let list = main_gts(&list).unwrap_or_default();
    if list.is_empty() {
        return Err(because("it has no GT with execution units".into()));
    }
    let rate = rate(&abilities.rates, options.cycles);
    let one = |gt: &Gt| {
        let layout = Layout::of(found.device, gt.ip_version);
        let layout = match layout {
            Err(unknown) if options.nearest_layout => unknown.nearest,
            layout => layout
                .map_err(|unknown| because(format!("{unknown} (use it with --nearest-layout)")))?,
        };
        let shape = Shape {
            layout,
            record_size: abilities.record_size,
            base: None,
        };
        if aiprof_model::eu_stall::Splitter::new(layout, shape.record_size).is_none() {
            let size = shape.record_size;
            return Err(because(format!(
                "records of {size} bytes are not supported"
            )));
        }
        let cycles = rate.saturating_mul(options.one_of.max(1).into());
        let stream = DeviceStream {
            id: 0,
            name: format!("xe {} GT{}", found.address, gt.id),
            device: found.number,
            card: index,
            gt: gt.id.into(),
            relative: layout.relative(),
            cycles_per_sample: u32::try_from(cycles).unwrap_or(u32::MAX),
            replayed: None,
        };
        Ok(XeGt {
            card: card.clone(),
            stream,
            shape,
            rate,
            one_of: options.one_of,
        })
    };
    list.iter().map(one).collect()
}

/// Why a virtual function cannot be sampled.
pub(crate) const NO_VIRTUAL: &str = "SR-IOV virtual functions have no EU stall sampling; run \
                                     aiprof on the host, which has the physical function";

fn explain_query(error: Errno) -> String {
    match error {
        Errno::INVAL => "the driver has no EU stall sampling; use Linux 6.15 or later".into(),
        Errno::NODEV | Errno::OPNOTSUPP => {
            "the hardware has no EU stall sampling (Ponte Vecchio, Xe2 and later have it), or it \
             is an SR-IOV virtual function"
                .into()
        }
        error => format!("the driver does not report what it can sample: {error}"),
    }
}

/// The rate that is nearest to what was asked for.
fn rate(rates: &[u64], asked: Option<u32>) -> u64 {
    let wanted = asked.map_or(USUAL_CYCLES, u64::from);
    let nearest = rates.iter().min_by_key(|rate| rate.abs_diff(wanted));
    nearest.copied().unwrap_or(USUAL_CYCLES)
}

impl XeGt {
    /// Its stream's number in the recording, and the code that samples it until the
    /// end.
    pub(super) fn run(
        mut self,
        id: u32,
        feed: Feed,
        control: Arc<StreamControl>,
    ) -> impl FnOnce() + Send + 'static {
        self.stream.id = id;
        move || {
            let recorder = StreamRecorder::new(self.stream.clone(), self.shape, feed.clone());
            // `gts` has looked at the size of records.
            if let Some(recorder) = recorder {
                let mut sampler = Sampler {
                    recorder: recorder.one_of(self.one_of),
                    gt: self,
                    feed,
                    control,
                    buffer: vec![0; PIECE],
                };
                sampler.run();
            }
        }
    }
}

struct Sampler {
    gt: XeGt,
    recorder: StreamRecorder,
    feed: Feed,
    control: Arc<StreamControl>,
    buffer: Vec<u8>,
}

impl Sampler {
    fn run(&mut self) {
        let mut pause = FIRST_PAUSE;
        // Since when, and why, it is not sampled.
        let mut gap: Option<(Instant, String)> = None;
        loop {
            let error = match self.open() {
                Ok(stream) => {
                    self.opened(gap.take());
                    let begin = Instant::now();
                    let Err(error) = self.sample(&*stream) else {
                        break;
                    };
                    // It has worked: the next failure is another one.
                    if begin.elapsed() > LAST_PAUSE {
                        pause = FIRST_PAUSE;
                    }
                    self.recorder.cut();
                    explain_read(error)
                }
                Err(Errno::ACCESS | Errno::PERM) => {
                    self.problem(Some(explain_access()));
                    return;
                }
                Err(error) => explain_open(error),
            };
            self.problem(Some(error.clone()));
            let busy = error == BUSY;
            gap.get_or_insert_with(|| (Instant::now(), error));
            if self.control.sleep(if busy { BUSY_PAUSE } else { pause }) {
                break;
            }
            pause = pause.saturating_mul(2).min(LAST_PAUSE);
        }
        let now = monotonic_ns();
        self.recorder.close_waiting(now, now);
    }

    fn open(&self) -> Result<Box<dyn Stream>, Errno> {
        let properties = Chain::new(&[
            (PROP_GT_ID, self.gt.stream.gt.into()),
            (PROP_SAMPLE_RATE, self.gt.rate),
            (PROP_WAIT_NUM_REPORTS, 1),
        ]);
        let stream = self.gt.card.open_stream(&properties)?;
        stream.enable()?;
        Ok(stream)
    }

    fn opened(&mut self, gap: Option<(Instant, String)>) {
        let text = gap.map(|(since, why)| {
            let seconds = since.elapsed().as_secs_f64();
            format!("not sampled for {seconds:.1} s: {why}")
        });
        self.problem(text);
        self.recorder.announce();
    }

    fn problem(&self, text: Option<String>) {
        let text = text.map(|text| format!("{}: {text}.", self.gt.stream.name));
        let id = self.gt.stream.id;
        self.feed.status().problem(id, Topic::Reading, text);
    }

    /// Reads until the end, or until the stream fails.
    fn sample(&mut self, stream: &dyn Stream) -> Result<(), Errno> {
        let opened = monotonic_ns();
        let mut last = opened;
        let mut end = None;
        loop {
            match stream.wait(WAIT) {
                Ok(()) | Err(Errno::INTR) => {}
                Err(error) => return Err(error),
            }
            let begin = monotonic_ns();
            let (any, result) = self.drain(stream);
            if any {
                let from = window_begin(last, begin, opened, BUFFERED);
                self.recorder.close(from, monotonic_ns());
                last = begin;
            }
            result?;
            if self.control.is_stopped() {
                // What was sampled until now shows within two looks of the driver.
                let end = *end.get_or_insert_with(|| Instant::now() + 2 * PERIOD);
                if Instant::now() >= end {
                    return Ok(());
                }
            }
        }
    }

    /// Reads what is there. Whether there was anything, and whether it can go on.
    fn drain(&mut self, stream: &dyn Stream) -> (bool, Result<(), Errno>) {
        let mut any = false;
        for _ in 0..MAX_READS {
            match stream.read(&mut self.buffer) {
                Ok(0) | Err(Errno::AGAIN) => break,
                Ok(n) => {
                    self.recorder.add(self.buffer.get(..n).unwrap_or_default());
                    any = true;
                    // The driver had no more.
                    if n + self.gt.shape.record_size <= self.buffer.len() {
                        break;
                    }
                }
                // Reported once: the samples that are left come with the next read.
                Err(Errno::IO) => {
                    self.recorder.dropped(1);
                    any = true;
                }
                Err(Errno::INTR) => {}
                Err(error) => return (any, Err(error)),
            }
        }
        (any, Ok(()))
    }
}

const BUSY: &str = "another profiler is sampling it, and only one can at a time; end the other \
                    profiler";

fn explain_open(error: Errno) -> String {
    match error {
        Errno::BUSY => BUSY.into(),
        error => format!("cannot open an EU stall stream: {error}"),
    }
}

fn explain_access() -> String {
    "not permitted: run aiprof as root or with CAP_PERFMON, or set the sysctl \
     dev.xe.observation_paranoid=0"
        .into()
}

fn explain_read(error: Errno) -> String {
    match error {
        Errno::NODEV => "the GT was reset, or the card was removed".into(),
        error => format!("cannot read the EU stall stream: {error}"),
    }
}

#[cfg(test)]
#[path = "xe_tests.rs"]
mod tests;
