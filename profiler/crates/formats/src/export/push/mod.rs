//! What stores of profiles take by their own protocols: Pyroscope's `push.v1.PushRequest`
//! and Parca's `WriteRawRequest`. Both are a list of series, each with labels and profiles
//! in pprof.
//!
//! A series is a service. What else is known of samples is in no label: both stores make
//! every label a series, and a server takes some thousands of these in all.

mod proto;

use super::services::Services;
use super::{ExportError, ExportOptions, pprof};
use aiprof_model::labels;
use aiprof_model::profile::{Profile, Sample, Values};
use prost::Message as _;
use std::collections::BTreeMap;

/// Most samples in one profile: Pyroscope takes 16,000
/// (`validation.max_profile_stacktrace_samples`).
const MAX_SAMPLES: usize = 10_000;

/// A profile as a `push.v1.PushRequest` of Pyroscope. Samples of CPUs are `process_cpu`, as
/// Pyroscope's own agents have it.
///
/// # Errors
/// [`ExportError::Io`]; not in memory.
pub fn pyroscope(profile: &Profile, options: &ExportOptions) -> Result<Vec<u8>, ExportError> {
    let mut request = proto::PushRequest::default();
    for (labels, samples) in series(profile, options) {
        let label = |(name, value): (String, String)| proto::Label { name, value };
        let mut labels: Vec<_> = labels.into_iter().map(label).collect();
        // Required: it names what the values are.
        labels.push(proto::Label {
            name: "__name__".to_owned(),
            value: name(profile.values).to_owned(),
        });
        labels.sort_by(|a, b| a.name.cmp(&b.name));
        request.series.push(proto::PushedSeries {
            labels,
            samples: raw(profile, options, &samples)?,
        });
    }
    Ok(request.encode_to_vec())
}

/// A profile as a `parca.profilestore.v1alpha1.WriteRawRequest`. Addresses are those of
/// the files, so that Parca needs no mappings of processes to find symbols.
///
/// # Errors
/// [`ExportError::Io`]; not in memory.
pub fn parca(profile: &Profile, options: &ExportOptions) -> Result<Vec<u8>, ExportError> {
    let mut request = proto::WriteRawRequest {
        normalized: true,
        ..proto::WriteRawRequest::default()
    };
    for (labels, samples) in series(profile, options) {
        let label = |(name, value): (String, String)| proto::Label { name, value };
        let mut labels: Vec<_> = labels.into_iter().map(label).collect();
        labels.push(proto::Label {
            name: "__name__".to_owned(),
            value: format!("aiprof_{}", name(profile.values)),
        });
        labels.sort_by(|a, b| a.name.cmp(&b.name));
        request.series.push(proto::WrittenSeries {
            labels: Some(proto::LabelSet { labels }),
            samples: raw(profile, options, &samples)?,
        });
    }
    Ok(request.encode_to_vec())
}

/// What profiles of these values are called.
fn name(values: Values) -> &'static str {
    match values {
        Values::CpuTime => "process_cpu",
        Values::WaitTime => "off_cpu",
        Values::WallTime => "wall",
        Values::Launches => "launches",
    }
}

/// The samples of each service, with the labels of its series.
fn series<'a>(
    profile: &'a Profile,
    options: &ExportOptions,
) -> BTreeMap<BTreeMap<String, String>, Vec<&'a Sample>> {
    let mut all: BTreeMap<BTreeMap<String, String>, Vec<&Sample>> = BTreeMap::new();
    let mut services = Services::default();
    for sample in &profile.samples {
        if options.shown.includes(sample) {
            let labels = labels_of(profile, sample, &mut services);
            all.entry(labels).or_default().push(sample);
        }
    }
    all
}

/// The labels of the series that a sample belongs to.
fn labels_of(
    profile: &Profile,
    sample: &Sample,
    services: &mut Services,
) -> BTreeMap<String, String> {
    let mut all = BTreeMap::new();
    for (key, value) in &profile.labels {
        all.insert(
            label_name(profile.str(*key)),
            profile.str(*value).to_owned(),
        );
    }
    if let Some(namespace) = profile.label(sample, labels::NAMESPACE) {
        all.insert("namespace".to_owned(), namespace.into_owned());
    }
    all.insert("hostname".to_owned(), profile.meta.host.clone());
    all.insert("service_name".to_owned(), services.name(profile, sample));
    all.retain(|_, value| !value.is_empty());
    all
}

/// A key as Prometheus has the names of labels: letters, digits and `_`, no digit first, and
/// none of its own, which begin with `__`.
fn label_name(key: &str) -> String {
    let letter = |letter: char| match letter.is_ascii_alphanumeric() {
        true => letter,
        false => '_',
    };
    let name: String = key.chars().map(letter).collect();
    let name = name.trim_start_matches('_');
    match name.chars().next() {
        Some(first) if !first.is_ascii_digit() => name.to_owned(),
        _ => format!("label_{name}"),
    }
}

/// Samples as profiles that a server takes.
fn raw(
    profile: &Profile,
    options: &ExportOptions,
    samples: &[&Sample],
) -> Result<Vec<proto::RawSample>, ExportError> {
    let pieces = samples.chunks(MAX_SAMPLES);
    let packed = pieces.map(|piece| {
        let raw_profile = pprof::pack_unlabelled(profile, options, piece.iter().copied())?;
        Ok(proto::RawSample { raw_profile })
    });
    packed.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use aiprof_model::profile::{FrameKind, Location, Meta, ProfileBuilder, Stack};
    use std::io::Read as _;

    /// A profile of these samples: process, thread, function, count.
    fn profile(samples: &[(&str, u32, &str, u64)]) -> Profile {
        profile_of(samples, |_| Vec::new())
    }

    /// The same with labels for each process.
    fn profile_of(
        samples: &[(&str, u32, &str, u64)],
        labels: impl Fn(&str) -> Vec<(String, String)>,
    ) -> Profile {
        let mut builder = ProfileBuilder::new(Meta {
            host: "h".to_owned(),
            period_ns: 1000,
            start_unix_ns: 7,
            ..Meta::default()
        });
        builder.labels(&[("clu-ster".to_owned(), "c1".to_owned())]);
        for &(comm, tid, function, count) in samples {
            let frame = builder.frame(function, FrameKind::Native, None);
            let location = builder.location(Location {
                binary: None,
                address: 0,
                frames: vec![frame],
            });
            let stack = builder.stack(Stack {
                locations: vec![location],
                complete: true,
                driver: 0,
            });
            let process = builder.labelled_process(tid, comm, &labels(comm));
            let thread = builder.string(comm);
            builder.sample(Sample {
                process,
                tid,
                thread,
                cgroup: None,
                stack,
                count,
                time_ns: count * 1000,
                bytes: 0,
                device: None,
            });
        }
        builder.finish()
    }

    fn unpacked(bytes: &[u8]) -> pprof::proto::PprofProfile {
        let mut message = Vec::new();
        flate2::read::GzDecoder::new(bytes)
            .read_to_end(&mut message)
            .unwrap();
        pprof::proto::PprofProfile::decode(&message[..]).unwrap()
    }

    #[test]
    fn a_series_is_a_service_and_threads_are_added_up() {
        let profile = profile(&[("web", 1, "f", 2), ("web", 2, "f", 3), ("db", 3, "g", 4)]);
        let bytes = pyroscope(&profile, &ExportOptions::default()).unwrap();
        let request = proto::PushRequest::decode(&bytes[..]).unwrap();
        let labels = |at: usize| -> Vec<(&str, &str)> {
            let labels = request.series[at].labels.iter();
            labels
                .map(|l| (l.name.as_str(), l.value.as_str()))
                .collect()
        };
        assert_eq!(request.series.len(), 2);
        assert_eq!(
            labels(1),
            [
                ("__name__", "process_cpu"),
                ("clu_ster", "c1"),
                ("hostname", "h"),
                ("service_name", "web"),
            ]
        );
        let web = unpacked(&request.series[1].samples[0].raw_profile);
        assert_eq!(web.sample.len(), 1);
        assert_eq!(web.sample[0].value, [5, 5000]);
        assert!(web.sample[0].label.is_empty());
        assert_eq!((web.time_nanos, web.period), (7, 1000));
        let parca = parca(&profile, &ExportOptions::default()).unwrap();
        let parca = proto::WriteRawRequest::decode(&parca[..]).unwrap();
        assert!(parca.normalized);
        assert_eq!(parca.series.len(), 2);
        let db = unpacked(&parca.series[0].samples[0].raw_profile);
        assert_eq!(db.sample[0].value, [4, 4000]);
    }

    /// Any user can give processes and units of their own any name.
    #[test]
    fn series_with_names_that_users_choose_are_bounded() {
        is_bounded(|_| Vec::new());
        is_bounded(|comm| vec![(labels::UNIT.to_owned(), format!("{comm}.service"))]);
    }

    fn is_bounded(labels: impl Fn(&str) -> Vec<(String, String)>) {
        let names: Vec<String> = (0..1000).map(|n| format!("p{n}")).collect();
        let samples: Vec<_> = names
            .iter()
            .map(|name| (name.as_str(), 1, "f", 1))
            .collect();
        let profile = profile_of(&samples, labels);
        let bytes = pyroscope(&profile, &ExportOptions::default()).unwrap();
        let request = proto::PushRequest::decode(&bytes[..]).unwrap();
        assert_eq!(request.series.len(), 201);
        let of = |series: &proto::PushedSeries| -> i64 {
            let raw = series.samples.iter();
            let samples = raw.flat_map(|raw| unpacked(&raw.raw_profile).sample);
            samples.map(|sample| sample.value[0]).sum()
        };
        assert_eq!(request.series.iter().map(of).sum::<i64>(), 1000);
        let is_other = |l: &proto::Label| l.value == "[other]";
        let other = request
            .series
            .iter()
            .find(|s| s.labels.iter().any(is_other));
        assert_eq!(other.map(of), Some(800));
    }

    #[test]
    fn what_is_too_much_for_one_profile_is_several() {
        let names: Vec<String> = (0..MAX_SAMPLES + 1).map(|n| format!("f{n}")).collect();
        let samples: Vec<_> = names
            .iter()
            .map(|name| ("web", 1, name.as_str(), 1))
            .collect();
        let bytes = pyroscope(&profile(&samples), &ExportOptions::default()).unwrap();
        let request = proto::PushRequest::decode(&bytes[..]).unwrap();
        let sizes: Vec<usize> = request.series[0]
            .samples
            .iter()
            .map(|raw| unpacked(&raw.raw_profile).sample.len())
            .collect();
        assert_eq!(sizes, [MAX_SAMPLES, 1]);
    }

    #[test]
    fn keys_become_names_that_prometheus_takes() {
        for (key, name) in [
            ("a.b-c", "a_b_c"),
            ("__x", "x"),
            ("9", "label_9"),
            ("_", "label_"),
        ] {
            assert_eq!(label_name(key), name);
        }
    }
}
