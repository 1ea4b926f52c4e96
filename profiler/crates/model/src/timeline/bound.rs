//! Arrows that slices name themselves, instead of ends that are events of their own.

use super::{Event, Timeline, member};
use memchr::memmem;

/// Members of a slice by which it names an arrow; readers keep them among the arguments.
pub const BOUND_FLOW: [&str; 3] = ["bind_id", "flow_in", "flow_out"];

/// What a slice has to do with an arrow that it names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BoundFlow<'t> {
    /// The arrow's id, without quotes: slices with the same are of the same arrow.
    pub id: &'t str,
    /// The arrow begins in the slice.
    pub begins: bool,
    /// The arrow ends in the slice. If it begins there too, it passes.
    pub ends: bool,
}

impl Timeline {
    /// The arrow that a slice names itself: `bind_id` with `flow_out`, `flow_in` or both.
    pub fn bound_flow(&self, event: &Event) -> Option<BoundFlow<'_>> {
        let args = self.texts.get(event.args);
        if !event.is_slice() || memmem::find(args.as_bytes(), b"\"bind_id\":").is_none() {
            return None;
        }
        let is_set = |key| matches!(member(args, key), Some("true" | "1"));
        let (begins, ends) = (is_set("flow_out"), is_set("flow_in"));
        let id = member(args, "bind_id")?.trim_matches('"');
        (begins || ends).then_some(BoundFlow { id, begins, ends })
    }
}
