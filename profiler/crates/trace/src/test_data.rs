//! Real traces of `tests/data`.

use aiprof_formats::import::json;
use aiprof_model::timeline::Timeline;
use std::io::Read as _;
use std::path::Path;

/// The timeline of a packed JSON file, by its path in `tests/data`.
pub(crate) fn timeline(name: &str) -> Timeline {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../tests/data");
    let file = std::fs::File::open(folder.join(name)).unwrap();
    let mut text = String::new();
    flate2::read::GzDecoder::new(file)
        .read_to_string(&mut text)
        .unwrap();
    let mut timeline = Timeline::default();
    json::read(text.as_bytes(), "x.json", &mut timeline).unwrap();
    timeline
}
