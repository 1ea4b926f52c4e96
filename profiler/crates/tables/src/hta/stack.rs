//! The operators round each call, as a thread's spans nest.

use aiprof_model::timeline::{Event, Time, Timeline, TrackId};
use aiprof_trace::work::{RankWork, RankedWork, SpanRole, WorkIndex};
use rustc_hash::FxHashMap;

/// A span that is open.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OpenSpan {
    /// Its event.
    pub event: u32,
    /// Its role.
    pub role: SpanRole,
    /// Its end.
    pub end: Time,
    /// The outermost and the innermost operator of those open, itself included.
    pub operators: Option<(u32, u32)>,
}

/// Visits the host's spans of a rank: each with those round it, the outermost first.
pub(crate) fn walk<'t>(
    timeline: &'t Timeline,
    index: &WorkIndex,
    rank: &RankWork,
    visit: &mut dyn FnMut(&[OpenSpan], u32, &'t Event),
) {
    let mut open: Vec<OpenSpan> = Vec::new();
    let mut track: Option<TrackId> = None;
    for at in &rank.host {
        let Some(event) = timeline.events.get(*at as usize) else {
            continue;
        };
        if track != Some(event.track) {
            open.clear();
            track = Some(event.track);
        }
        while open
            .pop_if(|span| span.end <= event.start && span.end < event.end())
            .is_some()
        {}
        visit(&open, *at, event);
        let role = index.role(event);
        let around = open.last().and_then(|span| span.operators);
        let own = (role == SpanRole::Operator).then_some(*at);
        let outermost = around.map(|(outermost, _)| outermost).or(own);
        let innermost = own.or(around.map(|(_, innermost)| innermost));
        open.push(OpenSpan {
            event: *at,
            role,
            end: event.end(),
            operators: outermost.zip(innermost),
        });
    }
}

/// The work that each call launched, by its begin.
pub(crate) fn work_of_calls(rank: &RankWork) -> FxHashMap<u32, Vec<&RankedWork>> {
    let mut found: FxHashMap<u32, Vec<&RankedWork>> = FxHashMap::default();
    for work in &rank.work {
        found.entry(work.call).or_default().push(work);
    }
    found
}
