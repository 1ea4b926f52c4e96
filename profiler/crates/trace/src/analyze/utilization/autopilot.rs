//! Utilization of whole jobs, where the compiler chose for itself and only the sum of
//! its ideal cycles means anything.

use super::{CounterPoint, JobKey, KernelCall, shown_percent, utilization};
use crate::analyze::messages::Messages;
use rustc_hash::FxHashMap;

/// The kernels of one job, together.
#[derive(Clone, Copy, Debug)]
struct JobSpan {
    rank: i64,
    start_us: f64,
    end_us: f64,
    /// Time in kernels; gaps are not part of it.
    busy_us: f64,
    ideal_us: f64,
}

/// All jobs, in the order of their first call.
#[derive(Clone, Debug, Default)]
pub(super) struct Spans {
    spans: Vec<JobSpan>,
    places: FxHashMap<JobKey, usize>,
}

impl Spans {
    /// Adds a call of a job whose table takes `ideal_us` in all.
    pub(super) fn add(&mut self, call: &KernelCall<'_>, ideal_us: f64) {
        let (start, end) = (call.start_us, call.start_us + call.dur_us);
        let place = *self.places.entry(call.key()).or_insert_with(|| {
            self.spans.push(JobSpan {
                rank: call.rank,
                start_us: start,
                end_us: start,
                busy_us: 0.0,
                ideal_us,
            });
            self.spans.len() - 1
        });
        if let Some(span) = self.spans.get_mut(place) {
            span.start_us = span.start_us.min(start);
            span.end_us = span.end_us.max(end);
            // Kernels that overlap are busy once.
            let busy = span.busy_us + call.dur_us;
            span.busy_us = busy.min(span.end_us - span.start_us);
        }
    }

    /// The counter's values: each job's utilization, and nothing where no job runs. A job
    /// that starts before another one's end counts from there; one inside of another is
    /// left out and reported. Also how many jobs are faster than ideal.
    pub(super) fn finish(mut self, messages: &mut Messages) -> (Vec<CounterPoint>, u64) {
        self.spans.sort_by(|a, b| {
            let by_rank = a.rank.cmp(&b.rank);
            by_rank.then(a.start_us.total_cmp(&b.start_us))
        });
        let is_impossible =
            |span: &&JobSpan| utilization(span.ideal_us, span.busy_us) * 100.0 > 100.0;
        let impossible = self.spans.iter().filter(is_impossible).count() as u64;
        let mut points = Vec::new();
        for spans in self.spans.chunk_by(|a, b| a.rank == b.rank) {
            points_of_rank(spans, &mut points, messages);
        }
        (points, impossible)
    }
}

fn points_of_rank(spans: &[JobSpan], points: &mut Vec<CounterPoint>, messages: &mut Messages) {
    let mut end: Option<f64> = None;
    for span in spans {
        let point = |ts_us, percent| CounterPoint {
            rank: span.rank,
            ts_us,
            percent,
        };
        let mut start = span.start_us;
        if let Some(before) = end {
            if span.end_us < before {
                messages.warn(
                    "UTL",
                    format_args!(
                        "UTL: Counter embedding detected. Dropping embedded event.This is not \
                         technically possible and indicates a problem with the trace file."
                    ),
                );
                continue;
            }
            if start > before {
                points.push(point(before, 0.0));
            }
            start = start.max(before);
        }
        let percent = shown_percent(utilization(span.ideal_us, span.busy_us));
        points.push(point(start, percent));
        end = Some(span.end_us);
    }
    if let (Some(ts_us), Some(span)) = (end, spans.first()) {
        points.push(CounterPoint {
            rank: span.rank,
            ts_us,
            percent: 0.0,
        });
    }
}
