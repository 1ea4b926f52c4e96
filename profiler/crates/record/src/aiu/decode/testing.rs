//! What the fuzz target `aiu_records` calls.

use super::*;

/// Entry point for fuzzing: reads arbitrary bytes as a buffer, whole and cut, in
/// both byte orders, and as a single record.
///
/// # Panics
/// When what was read and what was not do not make up the buffer.
pub fn fuzz_records(data: &[u8]) {
    // Reading the table takes longer than reading most inputs.
    use super::super::record::Endian;
    use std::sync::OnceLock;
    static TABLE: OnceLock<Option<Layouts>> = OnceLock::new();
    let Some(layouts) = TABLE.get_or_init(|| Layouts::builtin().ok()) else {
        return;
    };
    for (endian, is_cut) in [(Endian::Little, false), (Endian::Big, true)] {
        let context = BufferContext {
            endian,
            is_cut,
            ..BufferContext::default()
        };
        let mut decoder = Decoder::new(layouts);
        let mut records = 0;
        let unknown = decoder.buffer(data, &context, |record| {
            assert!(record.start <= record.end, "ends before it starts");
            records += 1;
        });
        let smallest = layouts.layouts().iter().map(|l| l.size).min();
        let read = data.len() as u64 - unknown.bytes;
        assert!(
            records * smallest.unwrap_or(1) as u64 <= read,
            "too many records"
        );
        assert_eq!(unknown.bytes > 0, unknown.total() > 0, "{unknown:?}");
        // A layout may be in use by now or not.
        for stride in [None, Some(data.len() % 256)] {
            let _ = decoder.record(data, stride, &context);
        }
    }
}

#[cfg(test)]
aiprof_testkit::survives_seeds!("aiu_records", fuzz_records);
