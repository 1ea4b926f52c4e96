//! A [`Timeline`] as Perfetto's own format: `TracePacket`s with track events, which
//! ui.perfetto.dev opens at sizes where JSON does not fit into it any more.
//!
//! The packets of a row stand together, each begin and end in its place; rows follow
//! each other, for Perfetto sorts by time itself. Memory holds a few pieces of text and
//! some thirty bytes per event.

mod encode;
mod plan;
pub mod recording;
#[cfg(test)]
mod tests;
mod tracks;

use super::trace_events::Words;
use aiprof_model::parallel;
use aiprof_model::timeline::Timeline;
use encode::Encoder;
use plan::{PlannedEvent, TracePlan};
use std::io::{self, Write};

/// Steps that one thread writes at a time.
const PIECE: usize = 8192;

/// What was written otherwise than it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Written {
    /// Slices that end earlier than they should: too many overlapped on their row, none
    /// within another, and there was no place for more.
    pub clipped: u64,
}

/// Writes the events with these numbers. The numbers of processes and threads that are
/// none, or too large for Perfetto (31 bits), are replaced, and the rows named so.
///
/// # Errors
/// As `out`.
pub fn write(
    timeline: &Timeline,
    words: Words,
    order: &[u32],
    out: &mut impl Write,
) -> io::Result<Written> {
    let plan = TracePlan::new(timeline, order);
    let mut head = Vec::new();
    encode::begin(&mut head);
    plan.tracks.write(timeline, &mut head, |text| {
        out.write_all(text)?;
        text.clear();
        Ok(())
    })?;
    out.write_all(&head)?;
    let mut result = Ok(());
    let clipped = parallel::ordered(
        |pieces| {
            let (mut piece, mut number) = (Vec::with_capacity(PIECE), 0u64);
            let clipped = plan.walk(&mut |step: PlannedEvent| {
                piece.push(step);
                if piece.len() < PIECE {
                    return true;
                }
                number += 1;
                pieces.put((
                    number - 1,
                    std::mem::replace(&mut piece, Vec::with_capacity(PIECE)),
                ))
            });
            pieces.put((number, piece));
            clipped
        },
        |(number, steps)| Encoder::new(timeline, words, &plan, number).steps(&steps),
        |text| {
            result = out.write_all(&text);
            result.is_ok()
        },
    );
    result.map(|()| Written { clipped })
}
