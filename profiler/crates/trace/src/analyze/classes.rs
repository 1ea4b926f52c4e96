//! What each slice is to whoever looks for the time: `args.class` (stage 34), and
//! the counter of transfers' bandwidth that follows from it.

use aiprof_model::kernel_classes::KernelClass;
use aiprof_model::timeline::{Dialect, Event, Id, Kind, Kinds, Ph, Timeline};
use rustc_hash::FxHashMap;

/// Classes, and their names by their number.
macro_rules! classes {
    ($($(#[$doc:meta])* $name:ident = $text:literal,)*) => {
        /// Class of a slice: [`Event::class`](aiprof_model::timeline::Event).
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u8)]
        pub enum Class {
            /// No class: not a slice.
            None,
            $($(#[$doc])* $name,)*
        }

        /// Names of the classes as `args.class` has them, by [`Event::class`]; the
        /// first is of events that have none.
        pub const NAMES: &[&str] = &["", $($text,)*];
    };
}

classes! {
    /// None of the others.
    Other = "OTHER",
    /// Preparation of a kernel.
    ComputePrep = "COMPUTE_PREP",
    /// A kernel.
    ComputeExec = "COMPUTE_EXEC",
    /// Data to the device.
    DataIn = "DATA_IN",
    /// Data from the device.
    DataOut = "DATA_OUT",
    /// Conversion of data on the host.
    DataConvert = "SEN_DATA_CONVERT",
    /// Ranks wait for each other.
    Barrier = "MAIU_BARRIER",
    /// Ranks connect.
    WireUp = "MAIU_WIREUP",
    /// The host's round trip to the device.
    RoundTripFlex = "ROUNDTRIP_FLEX",
    /// The driver's round trip to the device.
    RoundTripAiu = "ROUNDTRIP_AIU",
    /// Local steps of a message between ranks.
    ProtocolSerial = "MAIU_PROTOCOL_SERIAL",
    /// By way of the host: waits for data.
    HostWaitData = "MAIU_HDMA_PROTOCOL_WAIT_DATA",
    /// By way of the host: waits for an acknowledgement.
    HostWaitAck = "MAIU_HDMA_PROTOCOL_WAIT_ACK",
    /// By way of the host: signals that data are there.
    HostSignalData = "MAIU_HDMA_PROTOCOL_SIGNAL_DATA",
    /// By way of the host: acknowledges.
    HostSignalAck = "MAIU_HDMA_PROTOCOL_SIGNAL_ACK",
    /// By way of the host: waits for the notice that was sent to be delivered.
    HostNotice = "MAIU_HDMA_PROTOCOL_MONITOR_NOTICE",
    /// By way of the host: sends data.
    HostSend = "MAIU_HDMA_PROTOCOL_SEND_DATA",
    /// By way of the host: receives data.
    HostReceive = "MAIU_HDMA_PROTOCOL_RECV_DATA",
    /// Between devices: sends data.
    PeerSend = "MAIU_P2PRDMA_PROTOCOL_SEND_DATA",
    /// Between devices: receives data.
    PeerReceive = "MAIU_P2PRDMA_PROTOCOL_RECV_DATA",
    /// Sends data between the kernels of a job.
    Send = "MAIU_PROTOCOL_SEND_DATA",
    /// Receives data between the kernels of a job.
    Receive = "MAIU_PROTOCOL_RECV_DATA",
    /// Signals that data are there, between the kernels of a job.
    SignalData = "MAIU_PROTOCOL_SIGNAL_DATA",
    /// Acknowledges, between the kernels of a job.
    SignalAck = "MAIU_PROTOCOL_SIGNAL_ACK",
    /// A kernel of a GPU that moves data between devices.
    Communication = "COMMUNICATION",
}

/// Transfers of this many bytes are signals, not data.
const SIGNAL_BYTES: i64 = 128;

/// What was found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClassReport {
    /// Slices by class, as [`NAMES`].
    pub counts: Vec<u64>,
    /// `TransferBW` counters that were added at the end of the events.
    pub counters: usize,
}

/// What a name shows, found once per name.
#[derive(Clone, Copy, Default)]
struct NameClasses {
    /// By itself, in FLEX and in TORCH traces.
    own: [Option<Class>; 2],
    /// In a collective, whatever else it is.
    collective: Option<Class>,
    /// In a collective, goes by way of the host.
    by_host: bool,
}

/// Sets the class of every slice. Needs kinds, transfers and final times of kernels; no
/// order. Counters are added at the end, not in their place.
///
/// `compat_bugs`: as in acelyzer 1.3.0, a size that is text, as in FLEX traces, is never
/// that of a signal, and every kernel of a GPU computes.
pub fn run(timeline: &mut Timeline, kinds: &Kinds, compat_bugs: bool) -> ClassReport {
    let words: Vec<NameClasses> = timeline.names.iter().map(|(_, text)| words(text)).collect();
    let spans = kernel_spans(timeline, kinds);
    let mut events = std::mem::take(&mut timeline.events);
    let mut outcome = ClassReport {
        counts: vec![0; NAMES.len()],
        counters: 0,
    };
    for event in events.iter_mut().filter(|e| e.is_slice() && !e.dropped) {
        let words = words.get(event.name.index()).copied().unwrap_or_default();
        let class = first(timeline, kinds, event, words, compat_bugs);
        let class = second(timeline, event, class, &spans, compat_bugs);
        event.class = class as u8;
        if let Some(count) = outcome.counts.get_mut(class as usize) {
            *count += 1;
        }
    }
    timeline.events = events;
    outcome.counters = bandwidth(timeline);
    outcome
}

fn words(name: &str) -> NameClasses {
    let any = |parts: &[&str]| parts.iter().any(|part| name.contains(part));
    let mut words = NameClasses::default();
    // A node's name follows; the fused node is not a conversion.
    let converts = name
        .rsplit_once("Compute of ")
        .is_some_and(|(_, node)| !node.contains("SenFusedDeviceNode"));
    words.own[0] = match name {
        _ if name.contains("AIU Roundtrip") => Some(Class::RoundTripAiu),
        "Flex RoundTrip" => Some(Class::RoundTripFlex),
        _ if any(&["Barrier:", "barrier:"]) => Some(Class::Barrier),
        "PrepareAndSyncRdma" => Some(Class::WireUp),
        _ if converts => Some(Class::DataConvert),
        _ => None,
    };
    words.own[1] = match name {
        _ if name.contains("AIU Roundtrip") => Some(Class::RoundTripAiu),
        "aiuLaunchSuperNode" | "aiuSuperNodeExecution" => Some(Class::RoundTripFlex),
        _ if any(&["Barrier:", "barrier:"]) => Some(Class::Barrier),
        "aiuPrepareAndSyncRdma" => Some(Class::WireUp),
        "aiuDataConvert" => Some(Class::DataConvert),
        _ => None,
    };
    words.by_host = any(&["Host DMA", "HCOLL"]);
    words.collective = if words.by_host {
        by_host(name)
    } else if name.contains("DLM Wait") {
        Some(Class::HostWaitData)
    } else {
        any(&["Set BcList", "Xseg to rank"]).then_some(Class::ProtocolSerial)
    };
    words
}

/// Steps of a collective that goes by way of the host.
fn by_host(name: &str) -> Option<Class> {
    let steps: [(&[&str], Class); 5] = [
        (
            &[
                "Wdone DmaI",
                "Wait for Data Avail Notice",
                "Wait for Notice (gather notifications)",
                "R5 Wait DATA",
            ],
            Class::HostWaitData,
        ),
        (&["Wait for ACK", "R5 Wait ACK"], Class::HostWaitAck),
        (
            &["Send ACK Instruction", "R5 Send ACK"],
            Class::HostSignalAck,
        ),
        (
            &["Send Instruction", "HCOLL Signal", "R5 Send DATA"],
            Class::HostSignalData,
        ),
        (
            &["Wait for Notice", "Wait for Delivery Notice"],
            Class::HostNotice,
        ),
    ];
    let says = |(parts, _): &&(&[&str], Class)| parts.iter().any(|part| name.contains(part));
    steps.iter().find(says).map(|(_, class)| *class)
}

/// Class by the event alone.
fn first(
    timeline: &Timeline,
    kinds: &Kinds,
    event: &Event,
    words: NameClasses,
    compat_bugs: bool,
) -> Class {
    let own = match timeline.dialect(event) {
        Dialect::Flex => words.own[0],
        Dialect::Torch => words.own[1],
        Dialect::Plain => Some(Class::Other),
    };
    let base = own.unwrap_or_else(|| {
        if kinds.of(event.name).is(Kind::PREP) {
            Class::ComputePrep
        } else if kinds.is_kernel(timeline, event) {
            match kinds.kernel_class(timeline, event) {
                _ if compat_bugs => Class::ComputeExec,
                KernelClass::Compute => Class::ComputeExec,
                KernelClass::Communication | KernelClass::Message => Class::Communication,
                KernelClass::Copy | KernelClass::MemorySet => Class::Other,
            }
        } else if kinds.is_data_in(timeline, event) {
            Class::DataIn
        } else if kinds.is_data_out(timeline, event) {
            Class::DataOut
        } else {
            Class::Other
        }
    });
    if !kinds.is_collective(timeline, event) {
        return base;
    }
    step(words, base)
}

/// The class of a part of a collective that would have the class `base` elsewhere.
fn step(words: NameClasses, base: Class) -> Class {
    let (send, receive) = if words.by_host {
        (Class::HostSend, Class::HostReceive)
    } else {
        (Class::PeerSend, Class::PeerReceive)
    };
    words.collective.unwrap_or(match base {
        Class::DataOut => send,
        Class::DataIn => receive,
        base => base,
    })
}

/// The class of a part of a collective by its name; `base`: what it has elsewhere.
pub(super) fn in_collective(name: &str, base: Class) -> Class {
    step(words(name), base)
}

/// Begins of the first and the last kernel of each job on each rank.
type Spans = FxHashMap<(u32, u32), (f64, f64)>;

fn kernel_spans(timeline: &Timeline, kinds: &Kinds) -> Spans {
    let mut spans = Spans::default();
    let is_one = |event: &&Event| {
        event.is_slice()
            && !event.dropped
            && timeline.dialect(event) == Dialect::Flex
            && kinds.is_kernel(timeline, event)
    };
    for event in timeline.events.iter().filter(is_one) {
        let span = spans.entry((timeline.job(event), timeline.rank(event)));
        let (first, last) = span.or_insert((event.ts(), event.ts()));
        *first = first.min(event.ts());
        *last = last.max(event.ts());
    }
    spans
}

/// Class by the event's place among the kernels: transfers between them are messages
/// between ranks.
fn second(
    timeline: &Timeline,
    event: &Event,
    class: Class,
    spans: &Spans,
    compat_bugs: bool,
) -> Class {
    if !matches!(class, Class::DataIn | Class::DataOut) || !event.is_counted() {
        return class;
    }
    // Only FLEX traces have spans.
    let span = spans.get(&(timeline.job(event), timeline.rank(event)));
    if !span.is_some_and(|(first, last)| event.ts() > *first && event.ts() < *last) {
        return class;
    }
    let bytes = timeline.transfer(event).map_or(-1, |t| t.bytes);
    let is_number = || timeline.arg(event, "bytes") == Some("128");
    let is_signal = bytes == SIGNAL_BYTES && (!compat_bugs || is_number());
    match (class, is_signal) {
        (Class::DataOut, true) => Class::SignalData,
        (Class::DataOut, false) => Class::Send,
        (_, true) => Class::SignalAck,
        (_, false) => Class::Receive,
    }
}

/// Adds `TransferBW` counters: a transfer's bandwidth at its begin, 0 at its end.
fn bandwidth(timeline: &mut Timeline) -> usize {
    let classes = [Class::DataIn, Class::DataOut, Class::Receive, Class::Send];
    let mut counters = Vec::new();
    let name = timeline.names.intern("TransferBW");
    let zero = timeline.texts.add("\"GB/s\":0.0");
    let events = std::mem::take(&mut timeline.events);
    for event in events.iter().filter(|e| !e.dropped) {
        let speed = timeline.transfer(event).map(|t| t.gigabytes_per_second);
        // Zero-length copies have "N/A".
        let Some(speed) = speed.filter(|speed| *speed > 0.0 && speed.is_finite()) else {
            continue;
        };
        if !classes.iter().any(|class| *class as u8 == event.class) {
            continue;
        }
        let args = timeline.texts.add(&format!("\"GB/s\":{speed:?}"));
        for (ts, args) in [(event.start, args), (event.end(), zero)] {
            let track = timeline
                .tracks
                .like(event.track, |track| track.tid = Id::NONE);
            let mut counter = Event::new(Ph::Counter, name, track, ts);
            counter.args = args;
            counters.push(counter);
        }
    }
    timeline.events = events;
    let count = counters.len();
    timeline.events.append(&mut counters);
    count
}

#[cfg(test)]
mod tests {
    use super::*;
    use aiprof_model::timeline::Id;
    use aiprof_testkit::scene::{self, Slice};

    fn classes(
        dialect: Dialect,
        slices: &[Slice<'_>],
        compat: bool,
    ) -> (Timeline, Vec<&'static str>) {
        let mut timeline = scene::empty(dialect);
        for slice in slices {
            scene::add(&mut timeline, slice);
        }
        let kinds = Kinds::new(&timeline);
        run(&mut timeline, &kinds, compat);
        let events = timeline.events.iter().filter(|e| e.is_slice());
        let names = events.map(|e| NAMES[usize::from(e.class)]).collect();
        (timeline, names)
    }

    /// Expected: section 12 of the specification.
    #[test]
    fn names_of_flex_traces_tell_the_class() {
        let plain = [
            ("add_11 Cmpt Prep", "COMPUTE_PREP"),
            ("add_11 Cmpt Exec", "COMPUTE_EXEC"),
            ("x DmaI", "DATA_IN"),
            ("x DmaO", "DATA_OUT"),
            ("Compute of add", "SEN_DATA_CONVERT"),
            ("Compute of SenFusedDeviceNode_0", "OTHER"),
            ("PrepareAndSyncRdma", "MAIU_WIREUP"),
            ("Barrier: 1", "MAIU_BARRIER"),
            ("Flex RoundTrip", "ROUNDTRIP_FLEX"),
            ("AIU Roundtrip", "ROUNDTRIP_AIU"),
            ("aiuDataConvert", "OTHER"),
        ];
        let shared = [
            ("Host DMA a Wdone DmaI", "MAIU_HDMA_PROTOCOL_WAIT_DATA"),
            (
                "Host DMA Wait for Notice (gather notifications) DmaI",
                "MAIU_HDMA_PROTOCOL_WAIT_DATA",
            ),
            (
                "Cleanup Host DMA Wait for ACK DmaI",
                "MAIU_HDMA_PROTOCOL_WAIT_ACK",
            ),
            (
                "Host DMA Send ACK Instruction DmaO",
                "MAIU_HDMA_PROTOCOL_SIGNAL_ACK",
            ),
            (
                "Host DMA Send Instruction DmaO",
                "MAIU_HDMA_PROTOCOL_SIGNAL_DATA",
            ),
            (
                "Host DMA Wait for Delivery Notice DmaI",
                "MAIU_HDMA_PROTOCOL_MONITOR_NOTICE",
            ),
            ("Host DMA x DmaO", "MAIU_HDMA_PROTOCOL_SEND_DATA"),
            ("Host DMA x DmaI", "MAIU_HDMA_PROTOCOL_RECV_DATA"),
            ("DLM Wait DmaI", "MAIU_HDMA_PROTOCOL_WAIT_DATA"),
            ("SenRdmaSend_8 - Set BcList DmaO", "MAIU_PROTOCOL_SERIAL"),
            (
                "SenRdmaSend_8 - Xseg to rank 1 DmaO",
                "MAIU_PROTOCOL_SERIAL",
            ),
            ("SenRdmaSend_8 DmaO", "MAIU_P2PRDMA_PROTOCOL_SEND_DATA"),
            ("SenRdmaRecv_8 DmaI", "MAIU_P2PRDMA_PROTOCOL_RECV_DATA"),
            ("AllReduce_Add_1 Cmpt Exec", "COMPUTE_EXEC"),
        ];
        let slice = |name, group: &'static str| Slice {
            name,
            dur: 1.0,
            transfer: Some((group, "", "", -1)),
            ..Slice::default()
        };
        let (names, expected): (Vec<_>, Vec<_>) = plain
            .iter()
            .map(|(name, class)| (slice(name, ""), *class))
            .chain(
                shared
                    .iter()
                    .map(|(name, class)| (slice(name, "G"), *class)),
            )
            .unzip();
        assert_eq!(classes(Dialect::Flex, &names, false).1, expected);
    }

    #[test]
    fn names_of_torch_traces_tell_the_class() {
        let slice = |name, cat| Slice {
            name,
            cat,
            ..Slice::default()
        };
        let (slices, expected): (Vec<_>, Vec<_>) = [
            (slice("anything", "kernel"), "COMPUTE_EXEC"),
            (slice("Memcpy (HtoD)", "gpu_memcpy"), "DATA_IN"),
            (slice("Memcpy (DtoH)", "gpu_memcpy"), "DATA_OUT"),
            (slice("aiuDataConvert", "cuda_runtime"), "SEN_DATA_CONVERT"),
            (
                slice("aiuSuperNodeExecution", "cuda_runtime"),
                "ROUNDTRIP_FLEX",
            ),
            (
                slice("HCOLL Signal 3", "kernel"),
                "MAIU_HDMA_PROTOCOL_SIGNAL_DATA",
            ),
            (
                slice("HCOLL Memcpy (DtoH)", "gpu_memcpy"),
                "MAIU_HDMA_PROTOCOL_SEND_DATA",
            ),
            (slice("Flex RoundTrip", "cpu_op"), "OTHER"),
        ]
        .into_iter()
        .unzip();
        assert_eq!(classes(Dialect::Torch, &slices, false).1, expected);
    }

    #[test]
    fn transfers_between_kernels_are_messages() {
        let slice = |name, ts, bytes| Slice {
            name,
            ts,
            dur: 1.0,
            stamps: Some([0; 5]),
            transfer: Some(("", "", "", bytes)),
            args: if bytes == 128 {
                "\"bytes\":\"128\""
            } else {
                ""
            },
            ..Slice::default()
        };
        let slices = [
            slice("a DmaO", 5.0, 128),
            slice("k Cmpt Exec", 10.0, -1),
            slice("a DmaI", 10.0, 64),
            slice("a DmaO", 11.0, 128),
            slice("a DmaO", 12.0, 64),
            slice("a DmaI", 13.0, 128),
            slice("a DmaI", 14.0, -1),
            slice("k Cmpt Exec", 20.0, -1),
            slice("a DmaI", 20.0, 64),
        ];
        let mut expected = vec![
            "DATA_OUT",
            "COMPUTE_EXEC",
            "DATA_IN",
            "MAIU_PROTOCOL_SIGNAL_DATA",
            "MAIU_PROTOCOL_SEND_DATA",
            "MAIU_PROTOCOL_SIGNAL_ACK",
            "MAIU_PROTOCOL_RECV_DATA",
            "COMPUTE_EXEC",
            "DATA_IN",
        ];
        assert_eq!(classes(Dialect::Flex, &slices, false).1, expected);
        (expected[3], expected[5]) = ("MAIU_PROTOCOL_SEND_DATA", "MAIU_PROTOCOL_RECV_DATA");
        assert_eq!(classes(Dialect::Flex, &slices, true).1, expected);
    }

    #[test]
    fn bandwidth_is_counted_while_a_transfer_goes_on() {
        let mut timeline = scene::empty(Dialect::Torch);
        for (name, cat, speed) in [
            ("Memcpy (HtoD)", "gpu_memcpy", 12.5),
            ("Memcpy (HtoD)", "gpu_memcpy", f64::NAN),
            ("Memcpy (DtoH)", "gpu_memcpy", 0.0),
            ("x", "kernel", 3.0),
        ] {
            let index = scene::add(
                &mut timeline,
                &Slice {
                    rank: 2,
                    name,
                    cat,
                    ts: 100.0,
                    dur: 7.0,
                    transfer: Some(("", "", "", 1)),
                    ..Slice::default()
                },
            );
            let transfer = timeline.events[index].transfer as usize;
            timeline.transfers[transfer].gigabytes_per_second = speed;
        }
        let kinds = Kinds::new(&timeline);
        assert_eq!(run(&mut timeline, &kinds, false).counters, 2);
        let counters: Vec<_> = timeline.events[4..]
            .iter()
            .map(|e| {
                (
                    e.ph,
                    timeline.pid(e),
                    e.ts(),
                    timeline.texts.get(e.args),
                    e.class,
                )
            })
            .collect();
        let pid = Id::Number(2);
        let expected = [
            (Ph::Counter, pid, 100.0, "\"GB/s\":12.5", 0),
            (Ph::Counter, pid, 107.0, "\"GB/s\":0.0", 0),
        ];
        assert_eq!(counters, expected);
        let mut timeline = scene::empty(Dialect::Flex);
        let kinds = Kinds::new(&timeline);
        assert_eq!(run(&mut timeline, &kinds, false).counters, 0);
    }
}
