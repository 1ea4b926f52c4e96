//! How much of a rank's communication goes on while it computes.
//!
//! What a device waits for during communication is time of communication here: a
//! receive lasts from when it was posted. Events of one kind that overlap count once.

use aiprof_model::kernel_classes::KernelClass;
use aiprof_model::timeline::{Kinds, Timeline};
use std::collections::BTreeMap;

/// Times of one rank, microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Share {
    /// The rank.
    pub rank: u32,
    /// Some kernel computes.
    pub compute_us: f64,
    /// Some event of a collective goes on.
    pub communication_us: f64,
    /// Some copy or fill of the device's memory goes on that is not part of a collective, also
    /// by a kernel.
    /// AIU: only copies between host and device.
    pub copy_us: f64,
    /// Kernels and collectives at once.
    pub overlap_us: f64,
    /// Kernels and copies at once.
    pub copy_overlap_us: f64,
}

impl Share {
    /// Communication that is hidden behind kernels, percent of all communication;
    /// `None`: there is none.
    pub fn overlap_percent(&self) -> Option<f64> {
        let us = self.communication_us;
        (us > 0.0).then(|| 100.0 * self.overlap_us / us)
    }

    /// The same of copies.
    pub fn copy_overlap_percent(&self) -> Option<f64> {
        (self.copy_us > 0.0).then(|| 100.0 * self.copy_overlap_us / self.copy_us)
    }
}

/// What an event does to how much goes on at a time.
#[derive(Clone, Copy)]
struct Change {
    ts: f64,
    kind: usize,
    by: i32,
}

const COMPUTE: usize = 0;
const COMMUNICATION: usize = 1;
const COPY: usize = 2;

/// Shares by rank; only ranks with device events. Needs final times, transfers and
/// kinds; no order.
pub fn run(timeline: &Timeline, kinds: &Kinds) -> Vec<Share> {
    let mut ranks: BTreeMap<u32, Vec<Change>> = BTreeMap::new();
    for event in timeline
        .events
        .iter()
        .filter(|e| e.is_slice() && !e.dropped)
    {
        if !kinds.is_device(timeline, event) {
            continue;
        }
        let changes = ranks.entry(timeline.rank(event)).or_default();
        let kind = match kinds.class(timeline, event) {
            Some(KernelClass::Communication | KernelClass::Message) => COMMUNICATION,
            Some(KernelClass::Compute) => COMPUTE,
            Some(KernelClass::Copy | KernelClass::MemorySet) => COPY,
            None => continue,
        };
        if event.dur() > 0.0 && event.end_us().is_finite() {
            let change = |ts, by| Change { ts, kind, by };
            changes.extend([change(event.ts(), 1), change(event.end_us(), -1)]);
        }
    }
    let share = |(rank, changes)| Share {
        rank,
        ..sweep(changes)
    };
    ranks.into_iter().map(share).collect()
}

fn sweep(mut changes: Vec<Change>) -> Share {
    changes.sort_by(|a, b| a.ts.total_cmp(&b.ts));
    let mut share = Share::default();
    let (mut open, mut last) = ([0i32; 3], 0.0);
    for Change { ts, kind, by } in changes {
        let took = ts - last;
        let goes_on = open.map(|count| count > 0);
        for (is_counted, sum) in [
            (goes_on[COMPUTE], &mut share.compute_us),
            (goes_on[COMMUNICATION], &mut share.communication_us),
            (goes_on[COPY], &mut share.copy_us),
            (
                goes_on[COMPUTE] && goes_on[COMMUNICATION],
                &mut share.overlap_us,
            ),
            (
                goes_on[COMPUTE] && goes_on[COPY],
                &mut share.copy_overlap_us,
            ),
        ] {
            if is_counted {
                *sum += took;
            }
        }
        last = ts;
        if let Some(count) = open.get_mut(kind) {
            *count += by;
        }
    }
    share
}

#[cfg(test)]
mod tests {
    use super::*;
    use aiprof_model::timeline::Dialect;
    use aiprof_testkit::scene::{self, Slice};

    #[test]
    fn hidden_communication_is_a_share_of_all_of_it() {
        let mut timeline = scene::empty(Dialect::Torch);
        for (rank, name, cat, ts, dur) in [
            (0, "k", "kernel", 0.0, 100.0),
            (0, "k", "kernel", 50.0, 100.0),
            (0, "HCOLL send", "kernel", 140.0, 40.0),
            (0, "HCOLL wait", "kernel", 150.0, 20.0),
            (0, "Memcpy (HtoD)", "gpu_memcpy", 90.0, 80.0),
            (0, "cpu", "cpu_op", 0.0, 1e9),
            (1, "k", "kernel", 0.0, 0.0),
        ] {
            let slice = Slice {
                rank,
                name,
                cat,
                ts,
                dur,
                ..Slice::default()
            };
            scene::add(&mut timeline, &slice);
        }
        let kinds = Kinds::new(&timeline);
        let shares = run(&timeline, &kinds);
        let expected = Share {
            rank: 0,
            compute_us: 150.0,
            communication_us: 40.0,
            copy_us: 80.0,
            overlap_us: 10.0,
            copy_overlap_us: 60.0,
        };
        let nothing = Share {
            rank: 1,
            ..Share::default()
        };
        assert_eq!(shares, [expected, nothing]);
        assert_eq!(expected.overlap_percent(), Some(25.0));
        assert_eq!(expected.copy_overlap_percent(), Some(75.0));
        assert_eq!(nothing.overlap_percent(), None);
    }

    /// Kernels count as what the table of names has, also where names were shortened.
    #[test]
    fn kernels_count_as_what_their_names_show() {
        let mut timeline = scene::empty(Dialect::Torch);
        let table = "[[kernel]]\nclass = \"message\"\nnames = [\"mine_*\"]\n";
        timeline.classes.add("t", table).unwrap();
        for (at, (name, cat)) in [
            (
                "void a::cross_device_reduce_1stage<float, 8>(int)",
                "kernel",
            ),
            ("void mine_1<float>(int)", "kernel"),
            ("gemm", "kernel"),
            ("triton_poi_fused_all_reduce_0", "kernel"),
            ("__amd_rocclr_copyBuffer.kd", "kernel"),
            ("__amd_rocclr_fillBufferAligned.kd", "kernel"),
            ("Memset (Device)", "gpu_memset"),
            ("Memcpy DtoD (Device -> Device)", "gpu_memcpy"),
            (
                "ncclDevKernel_AllReduce_Sum_f32_RING_LL",
                "gpu_user_annotation",
            ),
        ]
        .into_iter()
        .enumerate()
        {
            let slice = Slice {
                name,
                cat,
                ts: 10.0 * at as f64,
                dur: 1.0,
                ..Slice::default()
            };
            scene::add(&mut timeline, &slice);
        }
        let expected = Share {
            compute_us: 2.0,
            communication_us: 2.0,
            copy_us: 4.0,
            ..Share::default()
        };
        assert_eq!(run(&timeline, &Kinds::new(&timeline)), [expected]);
        let short = timeline.names.intern("short");
        for event in &mut timeline.events {
            (event.orig_name, event.name) = (event.name, short);
        }
        assert_eq!(run(&timeline, &Kinds::new(&timeline)), [expected]);
    }

    #[test]
    fn no_events_no_shares() {
        let timeline = scene::empty(Dialect::Flex);
        assert!(run(&timeline, &Kinds::new(&timeline)).is_empty());
    }
}
