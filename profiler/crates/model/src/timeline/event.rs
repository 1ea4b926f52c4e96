//! One event of a timeline.

use super::{Id, Length, NONE, Ph, Stretch, Sym, Text, Time, TrackId};

/// How well an event's times are known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Quality {
    /// As the source has them.
    #[default]
    Exact,
    /// The work lies within the event: between a launch and the end of a wait for it.
    Bounded,
    /// Its begin is exact, its end was not seen.
    Estimated,
}

/// One event: a span, a moment, a value, an end of a flow.
#[derive(Clone, Copy, Debug)]
pub struct Event {
    /// Begin.
    pub start: Time,
    /// Length; of slices only.
    pub length: Length,
    /// The id of flows and asynchronous slices.
    pub id: Id,
    /// `args.correlation`, which launches and their kernels share; 0: none.
    pub correlation: u64,
    /// The other arguments: members of a JSON object, with commas between them.
    pub args: Text,
    /// Its track.
    pub track: TrackId,
    /// Name; empty for a sample: the name is its stack's leaf.
    pub name: Sym,
    /// The name before it was refined; empty: it was not.
    pub orig_name: Sym,
    /// Category.
    pub cat: Sym,
    /// Work that a call gave a device, by name; of a CPU sample that was read for analysis
    /// the program's frames, root first, with `;` between; empty: none.
    pub work: Sym,
    /// Its stack, or [`NONE`].
    pub stack: u32,
    /// Its counters, in [`Timeline::devices`](super::Timeline::devices), or [`NONE`].
    pub device: u32,
    /// Its transfer, in [`Timeline::transfers`](super::Timeline::transfers), or [`NONE`].
    pub transfer: u32,
    /// Kind.
    pub ph: Ph,
    /// How well its times are known.
    pub quality: Quality,
    /// Index into the names of the class analysis; 0 if the event has no class.
    pub class: u8,
    /// `bp` of flows was `e`: the flow ends in the slice around it.
    pub binds_enclosing: bool,
    /// It is left out of everything from here on.
    pub dropped: bool,
    /// Its row and category are those of a device or its host, as TensorBoard wants.
    pub is_refined: bool,
}

impl Event {
    /// A slice, counter or mark with nothing but its kind, place and time.
    pub fn new(ph: Ph, name: Sym, track: TrackId, start: Time) -> Self {
        Self {
            start,
            length: Length::ZERO,
            id: Id::NONE,
            correlation: 0,
            args: Text::EMPTY,
            track,
            name,
            orig_name: Sym::EMPTY,
            cat: Sym::EMPTY,
            work: Sym::EMPTY,
            stack: NONE,
            device: NONE,
            transfer: NONE,
            ph,
            quality: Quality::Exact,
            class: 0,
            binds_enclosing: false,
            dropped: false,
            is_refined: false,
        }
    }

    /// Its end.
    pub fn end(&self) -> Time {
        self.start + self.length
    }

    /// Its begin, microseconds since the timeline's origin.
    pub fn ts(&self) -> f64 {
        self.start.micros()
    }

    /// Its length, microseconds.
    pub fn dur(&self) -> f64 {
        self.length.micros()
    }

    /// Its end, microseconds since the timeline's origin.
    pub fn end_us(&self) -> f64 {
        self.end().micros()
    }

    /// Gives it a begin, microseconds since the timeline's origin.
    pub fn set_ts(&mut self, micros: f64) {
        self.start = Time::from_micros(micros);
    }

    /// Gives it a length, microseconds.
    pub fn set_dur(&mut self, micros: f64) {
        self.length = Length::from_micros(micros);
    }

    /// Moves it by `by` microseconds, unless it is at the edge of all times.
    pub fn shift(&mut self, by: f64) {
        if self.start != Time::FIRST {
            self.start = self.start + Length::from_micros(by);
        }
    }

    /// Whether it is in a stretch of time, at least in part. Names of rows always are.
    pub fn is_within(&self, stretch: Stretch) -> bool {
        let end = self.start + self.length;
        self.ph == Ph::Metadata || (self.start <= stretch.to && end >= stretch.from)
    }

    /// Its name as its file has it: analyses shorten names.
    pub fn original_name(&self) -> Sym {
        match self.orig_name.is_empty() {
            true => self.name,
            false => self.orig_name,
        }
    }

    /// Whether it is a slice.
    pub fn is_slice(&self) -> bool {
        self.ph == Ph::Complete
    }

    /// Whether it came with device counters.
    pub fn is_counted(&self) -> bool {
        self.device != NONE
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn events_are_small() {
        let size = size_of::<super::Event>();
        assert!(size <= 96, "{size}");
    }
}
