//! Small timelines for tests of analyses.

use aiprof_model::calibrate::cycles::{Times, host_times};
use aiprof_model::timeline::{
    Device, Dialect, Event, Id, Job, NONE, Ph, Phase, RowGroup, Stated, Time, Timeline, Track,
    Transfer,
};
use std::cmp::Reverse;

/// A slice to be.
#[derive(Clone, Debug, Default)]
pub struct Slice<'a> {
    /// Rank, and process.
    pub rank: u32,
    /// Thread.
    pub tid: i64,
    /// Name.
    pub name: &'a str,
    /// Category.
    pub cat: &'a str,
    /// Begin, microseconds.
    pub ts: f64,
    /// Length, microseconds.
    pub dur: f64,
    /// What links a call to its work; 0: nothing.
    pub correlation: u64,
    /// CollGroup, Type, Peers, bytes.
    pub transfer: Option<(&'a str, &'a str, &'a str, i64)>,
    /// Device counters.
    pub stamps: Option<[i64; 5]>,
    /// Arguments, as members of an object.
    pub args: &'a str,
}

/// A timeline with one file and no events.
pub fn empty(dialect: Dialect) -> Timeline {
    let mut timeline = Timeline::default();
    timeline.jobs.push(Job {
        path: "dir/x.json".into(),
        name: "x.json".into(),
        hash: 2900,
        writer: "",
        dialect,
        rank: None,
        is_processed: false,
        stated: Stated::default(),
        is_recording: false,
    });
    timeline
}

/// Adds a slice to the first file; gives its index.
pub fn add(timeline: &mut Timeline, slice: &Slice<'_>) -> usize {
    add_to(timeline, 0, slice)
}

/// Files of PyTorch's profiler, by time: the slices of each. Those of a rank are of one process.
pub fn files_of_torch(files: &[Vec<Slice<'_>>]) -> Timeline {
    let mut timeline = empty(Dialect::Torch);
    let first = timeline.jobs.first().cloned();
    timeline.jobs = first.into_iter().cycle().take(files.len()).collect();
    for (job, slices) in (0..).zip(files) {
        for slice in slices {
            add_to(&mut timeline, job, slice);
            let pid = Id::Number(slice.rank.into());
            let group = RowGroup {
                host: None,
                process: pid,
                same: pid,
            };
            timeline.identity.groups.insert(pid, group);
        }
    }
    let order = |event: &Event| (event.start, Reverse(event.length));
    timeline.events.sort_by_key(order);
    timeline
}

fn add_to(timeline: &mut Timeline, job: u32, slice: &Slice<'_>) -> usize {
    let name = timeline.names.intern(slice.name);
    let pid = Id::Number(i64::from(slice.rank));
    let track = timeline.tracks.intern(Track {
        job,
        rank: slice.rank,
        ..Track::row(pid, Id::Number(slice.tid))
    });
    let mut event = Event::new(Ph::Complete, name, track, Time::from_micros(slice.ts));
    event.set_dur(slice.dur);
    event.cat = timeline.names.intern(slice.cat);
    event.correlation = slice.correlation;
    event.args = timeline.texts.add(slice.args);
    if let Some((group, kind, peers, bytes)) = slice.transfer {
        event.transfer = timeline.transfers.len() as u32;
        let transfer = Transfer {
            group: timeline.names.intern(group),
            kind: timeline.names.intern(kind),
            peers: timeline.names.intern(peers),
            bytes,
            gigabytes_per_second: f64::NAN,
            is_plural: peers.contains(','),
        };
        timeline.transfers.push(transfer);
    }
    if let Some(stamps) = slice.stamps {
        event.device = timeline.devices.len() as u32;
        timeline.devices.push(Device {
            stamps,
            power: -1,
            phase: Phase::of(slice.name),
            wrapped_at: 0,
            epoch: 0,
            adjusted: (0.0, 0.0),
            moved: 0.0,
            placed: 0.0,
            piece: 0,
            is_listed: false,
            is_counted: true,
            power_is_text: true,
        });
    }
    timeline.events.push(event);
    timeline.events.len() - 1
}

/// A slice on a thread of rank 0: category, name, thread, begin and end in microseconds,
/// correlation, arguments.
pub type ThreadSlice<'a> = (&'a str, &'a str, i64, f64, f64, u64, &'a str);

/// A timeline of PyTorch with these slices.
pub fn of_torch<'a>(slices: impl IntoIterator<Item = ThreadSlice<'a>>) -> Timeline {
    let mut timeline = empty(Dialect::Torch);
    for (cat, name, tid, ts, end, correlation, args) in slices {
        let slice = Slice {
            name,
            cat,
            tid,
            ts,
            dur: end - ts,
            correlation,
            args,
            ..Slice::default()
        };
        add(&mut timeline, &slice);
    }
    timeline
}

/// A flow's begin or end.
pub fn flow(timeline: &mut Timeline, ph: Ph, rank: u32, id: i64, ts: f64) {
    let name = timeline.names.intern("launch");
    let track = timeline.tracks.intern(Track {
        job: 0,
        rank,
        ..Track::row(Id::Number(rank.into()), Id::Number(7))
    });
    let mut event = Event::new(ph, name, track, Time::from_micros(ts));
    event.id = Id::Number(id);
    event.cat = timeline.names.intern("ac2g");
    timeline.events.push(event);
}

/// The shipped sample `allreduce_tp4.json` (of acelyzer, Apache-2.0): one all-reduce
/// of four AIUs, a chain. Device counters as read; begin and length as the counters
/// at 560 MHz make them of the host's end.
pub fn allreduce_tp4() -> Timeline {
    sample(true)
}

/// The same with the host's times.
pub fn allreduce_tp4_raw() -> Timeline {
    sample(false)
}

fn sample(calibrated: bool) -> Timeline {
    let mut timeline = empty(Dialect::Flex);
    timeline.rates.default = 560.0;
    timeline.origin = Some(TP4_ORIGIN);
    for row in TP4 {
        let row = row.replace('@', "AllReduce_all_reduce_4");
        let field: Vec<&str> = row.split('|').collect();
        let [rank, begin, end, name, group, kind, peers, bytes, stamps] = field[..] else {
            panic!("{row}");
        };
        let stamps: Vec<i64> = stamps.split(' ').map(|s| s.parse().unwrap()).collect();
        let stamps: [i64; 5] = stamps.try_into().unwrap();
        let (begin, end): (f64, f64) = (begin.parse().unwrap(), end.parse().unwrap());
        let Times {
            start_us,
            duration_us,
            ..
        } = host_times(&stamps.map(i128::from), Phase::of(name), end, 560.0);
        let bytes = bytes.parse().unwrap_or(-1);
        add(
            &mut timeline,
            &Slice {
                rank: rank.parse().unwrap(),
                name,
                ts: if calibrated { start_us } else { begin },
                dur: if calibrated { duration_us } else { end - begin },
                transfer: (!group.is_empty()).then_some((group, kind, peers, bytes)),
                stamps: Some(stamps),
                ..Slice::default()
            },
        );
    }
    timeline
        .events
        .sort_by_key(|event| (event.start, Reverse(event.length)));
    assert!(timeline.events.iter().all(|e| e.device != NONE));
    timeline
}

const TP4_ORIGIN: i64 = 2_097_962_447_000;

/// Rank, begin and end on the host, name, CollGroup, Type, peers, bytes, TS1 to TS5.
const TP4: [&str; 28] = [
    "0|511.067|1599.869|add_11 Cmpt Prep|||||2552537956 2552537956 2553144502 2553427105 2553427111",
    "0|1599.869|2107.165|add_11 Cmpt Exec|||||2552537956 2552537956 2553144502 2553427105 2553427111",
    "0|1598.374|2127.335|SenRdmaSend_82227 [sync=@_s0_r1_0] DmaO|@|SingleCast|1|524288|2552537957 2552537957 2553143669 2553143669 2553438341",
    "0|1598.345|2285.464|SenRdmaRecv_82229 [524288B] [sync=@_s3_r0x7_6] DmaI|@|WDone Barrier|3|524288|2553143653 2553526431 2553526437 2553526437 2553526440",
    "1|232.542|235.189|add_11 Cmpt Prep|||||1072959780 1072959780 1072961255 1073237269 1073237275",
    "1|235.189|730.535|add_11 Cmpt Exec|||||1072959780 1072959780 1072961255 1073237269 1073237275",
    "1|233.680|759.763|SenRdmaRecv_82236 [524288B] [sync=@_s0_r1_0] DmaI|@|WDone Barrier|0|524288|1072960414 1073253555 1073253561 1073253561 1073253564",
    "1|233.708|761.284|@_Add_1 Cmpt Prep|@||||1072960430 1072960430 1073254403 1073263667 1073263673",
    "1|761.284|777.909|@_Add_1 Cmpt Exec|@||||1072960430 1072960430 1073254403 1073263667 1073263673",
    "1|759.804|799.069|SenRdmaSend_82237 [sync=@_s1_r2_2] DmaO|@|SingleCast|2|524288|1072960431 1072960431 1073253578 1073253578 1073275457",
    "1|759.776|917.478|SenRdmaRecv_82239 [524288B] [sync=@_s3_r0x7_6] DmaI|@|WDone Barrier|3|524288|1073253562 1073341436 1073341442 1073341442 1073341445",
    "2|132.759|254.823|add_11 Cmpt Prep|||||115296734 115296734 115364750 115640121 115640127",
    "2|254.823|749.017|add_11 Cmpt Exec|||||115296734 115296734 115364750 115640121 115640127",
    "2|253.136|819.477|SenRdmaRecv_82236 [524288B] [sync=@_s1_r2_2] DmaI|@|WDone Barrier|1|524288|115363809 115679381 115679387 115679387 115679390",
    "2|253.164|820.996|@_Add_3 Cmpt Prep|@||||115363825 115363825 115680228 115689559 115689565",
    "2|820.996|837.741|@_Add_3 Cmpt Exec|@||||115363825 115363825 115680228 115689559 115689565",
    "2|819.518|862.162|SenRdmaSend_82237 [sync=@_s2_r3_4] DmaO|@|SingleCast|3|524288|115363826 115363826 115679404 115679404 115703166",
    "2|819.490|937.572|SenRdmaRecv_82239 [524288B] [sync=@_s3_r0x7_6] DmaI|@|WDone Barrier|3|524288|115679388 115745185 115745191 115745191 115745194",
    "3|266.279|285.503|add_11 Cmpt Prep|||||780533384 780533384 780544096 780819175 780819181",
    "3|285.503|779.184|add_11 Cmpt Exec|||||780533384 780533384 780544096 780819175 780819181",
    "3|267.587|952.944|SenRdmaRecv_82232 [524288B] [sync=@_s2_r3_4] DmaI|@|WDone Barrier|2|524288|780534113 780915994 780916000 780916000 780916003",
    "3|267.616|954.466|@_Add_5 Cmpt Prep|@||||780534129 780534129 780916842 780926001 780926007",
    "3|954.466|970.903|@_Add_5 Cmpt Exec|@||||780534129 780534129 780916842 780926001 780926007",
    "3|952.985|970.965|SenRdmaSend_82233 - Set BcList [sync=@_s3_r0x7_6] DmaO|@|Set BCList|0,1,2||780534130 780534130 780916017 780916017 780926036",
    "3|952.987|971.082|SenRdmaSend_82233 - Xseg to rank 0 [sync=@_s3_r0x7_6] DmaO|@|MultiCast XSEG|0||780534131 780534131 780916018 780916018 780926101",
    "3|952.989|971.199|SenRdmaSend_82233 - Xseg to rank 1 [sync=@_s3_r0x7_6] DmaO|@|MultiCast XSEG|1||780534132 780534132 780916019 780916019 780926166",
    "3|952.991|971.314|SenRdmaSend_82233 - Xseg to rank 2 [sync=@_s3_r0x7_6] DmaO|@|MultiCast XSEG|2||780534133 780534133 780916020 780916020 780926230",
    "3|952.993|1027.454|SenRdmaSend_82233 Data [sync=@_s3_r0x7_6] DmaO|@|MultiCast||524288|780534134 780534134 780916021 780916021 780957511",
];
