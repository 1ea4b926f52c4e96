//! Folded stacks as a profile.

use super::{proto, signed};
use rustc_hash::FxHashMap;

/// The messages of folded stacks, with what their values are. Frames have names and nothing
/// else.
pub(super) fn convert<'a>(
    stacks: impl Iterator<Item = (&'a str, u64)>,
    (name, unit): (&str, &str),
) -> proto::PprofProfile {
    let mut out = proto::PprofProfile {
        string_table: ["", name, unit].map(str::to_owned).to_vec(),
        sample_type: vec![proto::PprofValueType { r#type: 1, unit: 2 }],
        default_sample_type: 1,
        ..proto::PprofProfile::default()
    };
    let mut ids: FxHashMap<&'a str, u64> = FxHashMap::default();
    for (stack, value) in stacks {
        let mut location_id: Vec<u64> = Vec::new();
        for frame in stack.split(';') {
            let known = ids.get(frame).copied();
            location_id.push(known.unwrap_or_else(|| {
                let id = add(&mut out, frame);
                ids.insert(frame, id);
                id
            }));
        }
        location_id.reverse();
        out.sample.push(proto::PprofSample {
            location_id,
            value: vec![signed(value)],
            label: Vec::new(),
        });
    }
    out
}

/// Adds a function, with a location of its own of the same number.
fn add(out: &mut proto::PprofProfile, frame: &str) -> u64 {
    let name = i64::try_from(out.string_table.len()).unwrap_or(i64::MAX);
    out.string_table.push(frame.to_owned());
    let id = out.function.len() as u64 + 1;
    out.function.push(proto::PprofFunction {
        id,
        name,
        system_name: name,
        filename: 0,
    });
    out.location.push(proto::PprofLocation {
        id,
        line: vec![proto::PprofLine {
            function_id: id,
            line: 0,
        }],
        ..proto::PprofLocation::default()
    });
    id
}

#[cfg(test)]
mod tests {
    use crate::export::{ExportOptions, Weight, folded, pprof::write_folded};
    use crate::import::pprof;
    use std::io::Read as _;

    #[test]
    fn what_is_read_again_is_the_same() {
        let text = b"a;7;main;f_[i] 3\na;7;main;sys_[k] 12\n";
        let stacks = folded::read(&mut text.as_slice()).unwrap();
        for weight in [Weight::Time, Weight::Samples, Weight::Bytes] {
            let options = ExportOptions {
                weight,
                ..ExportOptions::default()
            };
            let (mut packed, mut bytes) = (Vec::new(), Vec::new());
            write_folded(&stacks, &options, &mut packed).unwrap();
            let mut unpacked = flate2::read::GzDecoder::new(packed.as_slice());
            unpacked.read_to_end(&mut bytes).unwrap();
            assert!(pprof::is_pprof(&bytes));
            let again = pprof::read(&mut bytes.as_slice(), weight).unwrap();
            assert_eq!((again.stacks, again.weight), (stacks.clone(), weight));
        }
    }
}
