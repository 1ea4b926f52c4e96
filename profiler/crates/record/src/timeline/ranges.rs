//! Ranges that programs name: spans of their threads, in the category of Kineto's
//! `record_function`. So all that knows annotations knows them.

use super::{TrackKey, TrackWriter, process_tracks::ProcessTracks};
use crate::correlate::{RangeForm, RangePayload, RangeSpan};
use aiprof_model::{
    profile::LossKind,
    timeline::{Args, Quality, recorded::EventSink},
    wire::OpKind,
};

/// The category of moments: annotations have a length.
const MOMENT: &str = "mark";

/// Draws a range.
pub(super) fn draw<S: EventSink>(
    writer: &mut TrackWriter<S>,
    processes: &mut ProcessTracks,
    range: &RangeSpan,
) {
    let (pid, tid) = (range.pid, range.tid);
    let key = match range.form {
        RangeForm::Loose => TrackKey::Ranges { pid },
        RangeForm::Nested(_) | RangeForm::Moment => TrackKey::Thread { pid, tid },
    };
    let Some(track) = writer.track(key) else {
        return writer.out.losses.add(LossKind::SpansRefused, 1);
    };
    let category = match range.form {
        RangeForm::Moment => MOMENT,
        _ => OpKind::Annotation.category(),
    };
    let name = writer.name(&range.about.name);
    let mut event = writer.span(name, category, track, (range.start_ns, range.end_ns));
    if range.is_unended {
        event.quality = Quality::Estimated;
    }
    let depth = match range.form {
        RangeForm::Nested(depth) => depth,
        _ => 0,
    };
    processes.marked(pid, tid);
    writer.out.totals.ops += 1;
    writer.push(&event, depth, &args_of(range));
}

/// What else is known of a range.
fn args_of(range: &RangeSpan) -> Args {
    let about = &range.about;
    let mut args = Args::new();
    args.text("api", &about.api);
    if let Some(domain) = &about.domain {
        args.text("domain", domain);
    }
    match &about.category {
        Some((_, Some(name))) => args.text("category", name),
        Some((number, None)) => args.number("category", (*number).into()),
        None => {}
    }
    match about.payload {
        Some(RangePayload::Unsigned(value)) => args.number("payload", value),
        Some(RangePayload::Signed(value)) => args.signed("payload", value),
        Some(RangePayload::Float(value)) => args.float("payload", value),
        None => {}
    }
    if range.form == RangeForm::Loose {
        args.number("thread", range.tid.into());
    }
    if let Some(tid) = range.ended_on {
        args.number("ended_on_thread", tid.into());
    }
    if range.is_unended {
        args.text("end", "not seen");
    }
    args
}
