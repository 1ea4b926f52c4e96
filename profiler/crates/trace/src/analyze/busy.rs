//! Times in which at least one of several spans lies.

/// Times in which at least one of several spans lies, microseconds.
pub(super) struct BusySpans {
    /// Begin and end, and the busy time before.
    spans: Vec<(f64, f64, f64)>,
}

impl BusySpans {
    /// The busy time of these spans, in any order.
    pub(super) fn new(mut spans: Vec<(f64, f64)>) -> Self {
        spans.sort_unstable_by(|a, b| a.0.total_cmp(&b.0));
        let mut merged: Vec<(f64, f64, f64)> = Vec::new();
        for (start, end) in spans {
            match merged.last_mut() {
                Some(last) if start <= last.1 => last.1 = last.1.max(end),
                Some((from, to, before)) => {
                    let before = *before + (*to - *from);
                    merged.push((start, end, before));
                }
                None => merged.push((start, end, 0.0)),
            }
        }
        Self { spans: merged }
    }

    /// Busy time before a time.
    pub(super) fn until(&self, ts: f64) -> f64 {
        let index = self.spans.partition_point(|span| span.0 < ts);
        let span = index.checked_sub(1).and_then(|index| self.spans.get(index));
        span.map_or(0.0, |(start, end, before)| before + (ts.min(*end) - start))
    }

    /// All busy time.
    pub(super) fn us(&self) -> f64 {
        let last = self.spans.last();
        last.map_or(0.0, |(start, end, before)| before + (end - start))
    }
}
