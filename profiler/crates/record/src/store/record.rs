//! An event in memory or in a file.
//!
//! An event begins, little-endian, with the number of its bytes (u32) and its begin in
//! picoseconds (i64). Numbers of seven bits a byte follow: length, depth, track, name,
//! category, work, stack, kind, quality and marks, correlation. Behind them are the number
//! of a flow, if it is of one, and its arguments.

use aiprof_model::timeline::{
    Event, Id, Length, Members, Ph, Quality, Sym, Time, TrackId,
    args::{put, take},
};
use std::{cmp::Reverse, io};

/// Bytes of the length at the begin of an event.
pub(super) const SIZE: usize = 4;
/// Most bytes of an event without its arguments: 12, and 12 numbers of up to 10.
const MOST: usize = 132;
/// Mark of an end of an arrow, and of what has a number of a flow.
const ENCLOSED: u64 = 4;
const OF_FLOW: u64 = 8;

/// Where an event belongs: its time; then the longer spans, so that parents come
/// before what is in them; then the outer ones.
pub(super) type Key = (i64, Reverse<i64>, u32);

pub(super) fn key(event: &Event, depth: u32) -> Key {
    // The ends of arrows come after the spans that begin then.
    let length = if event.is_slice() { event.length.0 } else { -1 };
    (event.start.0, Reverse(length), depth)
}

/// The event that begins there, with its arguments.
pub(super) fn record_at(bytes: &[u8], at: u32) -> &[u8] {
    let from = bytes.get(at as usize..).unwrap_or_default();
    from.get(..size_of_record(from)).unwrap_or_default()
}

pub(super) fn size_of_record(bytes: &[u8]) -> usize {
    bytes
        .first_chunk()
        .map_or(0, |len| u32::from_le_bytes(*len) as usize)
}

pub(super) fn encode(out: &mut Vec<u8>, event: &Event, depth: u32, args: &[u8]) -> io::Result<()> {
    let from = out.len();
    out.reserve(MOST + args.len());
    out.extend_from_slice(&[0; SIZE]);
    out.extend_from_slice(&event.start.0.to_le_bytes());
    let flow = event.id.number();
    let marks = u64::from(event.binds_enclosing) * ENCLOSED + u64::from(flow.is_some()) * OF_FLOW;
    for number in [
        event.length.0.cast_unsigned(),
        // What there is none of is the largest number.
        depth.wrapping_add(1).into(),
        event.track.0.into(),
        event.name.index() as u64,
        event.cat.index() as u64,
        event.work.index() as u64,
        event.stack.wrapping_add(1).into(),
        event.ph as u64,
        event.quality as u64 | marks,
        event.correlation,
    ] {
        put(out, number);
    }
    if let Some(flow) = flow {
        put(out, flow.cast_unsigned());
    }
    out.extend_from_slice(args);
    let len = u32::try_from(out.len() - from).map_err(io::Error::other)?;
    if let Some(place) = out.get_mut(from..from + SIZE) {
        place.copy_from_slice(&len.to_le_bytes());
    }
    Ok(())
}

/// The event of a record, and how many spans are around it. `None`: it is damaged.
pub(super) fn decode(record: &[u8]) -> Option<(Event, u32, Members<'_>)> {
    let (start, rest) = record.get(SIZE..)?.split_first_chunk()?;
    let from = &mut &*rest;
    let length = take(from)?.cast_signed();
    let mut word = || u32::try_from(take(from)?).ok();
    let depth = word()?.wrapping_sub(1);
    let (track, name, cat, work) = (TrackId(word()?), word()?, word()?, word()?);
    let stack = word()?.wrapping_sub(1);
    let ph = u8::try_from(word()?).ok()?;
    let ph = Ph::of(std::str::from_utf8(&[ph]).ok()?)?;
    let marks = take(from)?;
    let start = Time(i64::from_le_bytes(*start));
    let mut event = Event::new(ph, Sym::at(name), track, start);
    (event.length, event.stack) = (Length(length), stack);
    (event.cat, event.work) = (Sym::at(cat), Sym::at(work));
    event.correlation = take(from)?;
    if marks & OF_FLOW != 0 {
        event.id = Id::Number(take(from)?.cast_signed());
    }
    event.binds_enclosing = marks & ENCLOSED != 0;
    event.quality = match marks & 3 {
        0 => Quality::Exact,
        1 => Quality::Bounded,
        _ => Quality::Estimated,
    };
    Some((event, depth, Members::of(from)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span(start: i64, length: i64) -> Event {
        let mut event = Event::new(Ph::Complete, Sym::at(3), TrackId(7), Time(start));
        event.length = Length(length);
        event
    }

    #[test]
    fn an_event_is_read_as_it_was_written() {
        let mut event = span(-5, 1 << 50);
        event.correlation = u64::MAX;
        event.id = Id::Number(1 << 40);
        event.cat = Sym::at(1);
        event.work = Sym::at(2);
        event.stack = 9;
        event.quality = Quality::Bounded;
        event.binds_enclosing = true;
        for event in [event, span(0, 0)] {
            let args = "any";
            let mut record = Vec::new();
            encode(&mut record, &event, 4, args.as_bytes()).unwrap();
            let (read, depth, text) = decode(&record).unwrap();
            assert_eq!((depth, text.bytes()), (4, args.as_bytes()));
            assert_eq!(format!("{read:?}"), format!("{event:?}"));
            assert_eq!(record_at(&record, 0), record);
            for len in 0..record.len() - args.len() {
                assert!(decode(&record[..len]).is_none());
            }
        }
    }
}
