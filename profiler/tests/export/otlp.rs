//! OTLP profiles: decoded again. `tests/all/files/otlp.rs` has OpenTelemetry's own messages read
//! them.

use crate::fixtures::{self, PERIOD_NS};
use aiprof::export::otlp::{convert, proto};
use aiprof::export::{ExportOptions, FileFormat, Shown};
use aiprof::profile::{Profile, Values};
use prost::Message as _;
use std::collections::BTreeMap;

/// What is written, read again.
fn read(profile: &Profile, options: &ExportOptions) -> proto::ProfilesData {
    let bytes = crate::export(profile, FileFormat::named("otlp").unwrap(), options);
    let read = proto::ProfilesData::decode(&bytes[..]).unwrap();
    assert_eq!(read, convert(profile, options));
    read
}

fn text(value: &Option<proto::AnyValue>) -> String {
    match value.clone().unwrap().value.unwrap() {
        proto::AttributeValue::Text(text) => text,
        proto::AttributeValue::Number(number) => number.to_string(),
    }
}

/// Attributes by their keys.
fn attributes(tables: &proto::Dictionary, indices: &[i32]) -> BTreeMap<String, String> {
    let pair = |&at: &i32| {
        let one = &tables.attribute_table[at as usize];
        let key = tables.string_table[one.key_strindex as usize].clone();
        (key, text(&one.value))
    };
    let all: BTreeMap<_, _> = indices.iter().map(pair).collect();
    assert_eq!(all.len(), indices.len(), "a key is there twice");
    all
}

/// Functions of a stack, leaf first.
fn functions(tables: &proto::Dictionary, stack: i32) -> Vec<String> {
    let locations = &tables.stack_table[stack as usize].location_indices;
    let locations = locations
        .iter()
        .map(|&at| &tables.location_table[at as usize]);
    let lines = locations.flat_map(|location| &location.lines);
    let name = |line: &proto::OtlpLine| {
        let function = tables.function_table[line.function_index as usize];
        tables.string_table[function.name_strindex as usize].clone()
    };
    lines.map(name).collect()
}

/// Type, unit, period type, period and sum of all profiles of a kind.
fn kinds(data: &proto::ProfilesData) -> BTreeMap<(String, String, String, i64), i64> {
    let tables = data.dictionary.as_ref().unwrap();
    let name = |at: i32| tables.string_table[at as usize].clone();
    let mut found = BTreeMap::new();
    for profile in profiles(data) {
        let kind = profile.sample_type.unwrap();
        let period = profile.period_type;
        let key = (
            name(kind.type_strindex),
            name(kind.unit_strindex),
            period.map_or(String::new(), |period| name(period.type_strindex)),
            profile.period,
        );
        let sum: i64 = profile.samples.iter().flat_map(|s| &s.values).sum();
        *found.entry(key).or_default() += sum;
    }
    found
}

fn profiles(data: &proto::ProfilesData) -> impl Iterator<Item = &proto::OtlpProfile> {
    let scopes = data
        .resource_profiles
        .iter()
        .flat_map(|r| &r.scope_profiles);
    scopes.flat_map(|scope| &scope.profiles)
}

/// The resources of a request, by their services.
fn services(data: &proto::ProfilesData) -> BTreeMap<String, BTreeMap<String, String>> {
    let resources = data.resource_profiles.iter().map(|one| {
        let attributes = &one.resource.as_ref().unwrap().attributes;
        let pairs = attributes
            .iter()
            .map(|kv| (kv.key.clone(), text(&kv.value)));
        pairs.collect::<BTreeMap<_, _>>()
    });
    resources
        .map(|resource| (resource["service.name"].clone(), resource))
        .collect()
}

fn of_kind(name: &str, unit: &str, period: (&str, u64)) -> (String, String, String, i64) {
    let period_ns = period.1 as i64;
    (name.into(), unit.into(), period.0.into(), period_ns)
}

#[test]
fn files_decode_to_what_was_recorded() {
    let data = read(&fixtures::typical(), &ExportOptions::default());
    let tables = data.dictionary.as_ref().unwrap();
    let expected = [(of_kind("samples", "count", ("cpu", PERIOD_NS)), 100)];
    assert_eq!(kinds(&data), BTreeMap::from(expected));
    // All are of one unit of systemd.
    let services = services(&data);
    assert_eq!(services.keys().collect::<Vec<_>>(), ["job"]);
    assert_eq!(services["job"]["host.name"], "node-7");

    let profile = profiles(&data).next().unwrap();
    assert_eq!(profile.time_unix_nano, 1_780_000_000_000_000_000);
    assert_eq!(profile.duration_nano, 30_000_000_000);
    let about = attributes(tables, &profile.attribute_indices);
    assert_eq!(about["aiprof.lost.ring_drops"], "2");
    assert_eq!(about["aiprof.lost.stack_table_absent"], "3");

    let sample = profile.samples.iter().find(|s| s.values == [40]).unwrap();
    assert_eq!(
        functions(tables, sample.stack_index),
        [
            "fma<float, [4; 4]>",
            "Row::dot",
            "Matrix::multiply",
            "main",
            "_start"
        ]
    );
    let known = attributes(tables, &sample.attribute_indices);
    let expected = [
        ("aiprof.unit", "job.service"),
        ("process.executable.name", "train"),
        ("process.pid", "4242"),
        ("thread.id", "4242"),
        ("thread.name", "train"),
    ];
    let expected = expected.map(|(key, value)| (key.to_owned(), value.to_owned()));
    assert_eq!(known, BTreeMap::from(expected));
    let stack = &tables.stack_table[sample.stack_index as usize];
    let leaf = &tables.location_table[stack.location_indices[0] as usize];
    assert_eq!((leaf.address, leaf.lines[0].line), (0x1200, 3));
    let mapping = &tables.mapping_table[leaf.mapping_index as usize];
    let path = &tables.string_table[mapping.filename_strindex as usize];
    assert_eq!(path, "/usr/bin/train");
    assert!(mapping.memory_limit > leaf.address);
    let id = attributes(tables, &mapping.attribute_indices);
    assert_eq!(id["process.executable.build_id.gnu"], "abcd01");
    let types = tables.location_table.iter().map(|location| {
        let all = attributes(tables, &location.attribute_indices);
        all.get("profile.frame.type").cloned().unwrap_or_default()
    });
    let mut types: Vec<_> = types.collect();
    types.sort();
    types.dedup();
    let expected = ["", "cpython", "device", "jit", "kernel", "native"];
    assert_eq!(types, expected);
}

/// The specification: an entry that is empty, and none twice.
#[test]
fn tables_begin_with_nothing_and_have_each_entry_once() {
    for seed in 0..20 {
        let data = read(
            &fixtures::random(seed, 200, 8, 30),
            &ExportOptions::default(),
        );
        let tables = data.dictionary.unwrap();
        assert_eq!(tables.mapping_table[0], proto::OtlpMapping::default());
        assert_eq!(tables.location_table[0], proto::OtlpLocation::default());
        assert_eq!(tables.function_table[0], proto::FunctionEntry::default());
        assert_eq!(tables.attribute_table[0], proto::Attribute::default());
        assert_eq!(tables.stack_table[0], proto::OtlpStack::default());
        assert_eq!(tables.string_table[0], "");
        let [link] = &tables.link_table[..] else {
            panic!("{:?}", tables.link_table);
        };
        assert_eq!((link.trace_id.len(), link.span_id.len()), (16, 8));
        let mut strings = tables.string_table.clone();
        strings.sort();
        strings.dedup();
        assert_eq!(strings.len(), tables.string_table.len());
        for (at, stack) in tables.stack_table.iter().enumerate() {
            assert!(!tables.stack_table[..at].contains(stack), "{stack:?}");
        }
    }
}

#[test]
fn sums_are_the_profile_totals_and_no_sample_is_there_twice() {
    for seed in 0..40 {
        let profile = fixtures::random(seed, seed * 7, 30, 40);
        let data = read(&profile, &ExportOptions::default());
        let total: u64 = profile.samples.iter().map(|s| s.count).sum();
        let sums: Vec<_> = kinds(&data).into_values().collect();
        assert_eq!(sums, [total as i64]);
        for profile in profiles(&data) {
            let keys = profile.samples.iter();
            let mut keys: Vec<_> = keys
                .map(|sample| (sample.stack_index, sample.attribute_indices.clone()))
                .collect();
            keys.sort();
            keys.dedup();
            assert_eq!(keys.len(), profile.samples.len());
        }
    }
}

#[test]
fn devices_have_profiles_of_their_own() {
    for seed in 0..20 {
        let profile = fixtures::random_devices(seed);
        let options = ExportOptions {
            all_processes: true,
            ..ExportOptions::default()
        };
        let sum = |is_device: bool, value: fn(&aiprof::profile::Sample) -> u64| {
            let samples = profile.samples.iter();
            let samples = samples.filter(|sample| sample.device.is_some() == is_device);
            samples.map(value).sum::<u64>() as i64
        };
        let count = of_kind("device_samples", "count", ("device_samples", 1));
        let time = of_kind("device_time", "nanoseconds", ("device_time", 1));
        let cpu = of_kind("samples", "count", ("cpu", PERIOD_NS));
        let expected = BTreeMap::from([
            (cpu, sum(false, |s| s.count)),
            (count.clone(), sum(true, |s| s.count)),
            (time.clone(), sum(true, |s| s.time_ns)),
        ]);
        assert_eq!(kinds(&read(&profile, &options)), expected);
        let only = ExportOptions {
            shown: Shown::Device,
            ..options
        };
        let found = kinds(&read(&profile, &only));
        assert_eq!(found.into_keys().collect::<Vec<_>>(), [count, time]);
    }
}

#[test]
fn waits_and_launches_are_named_for_what_they_are() {
    let of = |values| {
        let mut profile = fixtures::typical();
        profile.values = values;
        kinds(&read(&profile, &ExportOptions::default()))
    };
    let ns = 100 * PERIOD_NS as i64;
    let wait = (of_kind("off_cpu", "nanoseconds", ("", 0)), ns);
    assert_eq!(of(Values::WaitTime), BTreeMap::from([wait]));
    let wall = (of_kind("wall", "nanoseconds", ("wall", 1)), ns);
    assert_eq!(of(Values::WallTime), BTreeMap::from([wall]));
    // Nothing was moved: there is no profile of bytes.
    let launches = (of_kind("launches", "count", ("launches", 1)), 100);
    let time = (of_kind("call_time", "nanoseconds", ("call_time", 1)), ns);
    assert_eq!(of(Values::Launches), BTreeMap::from([launches, time]));
    // If the clock has no period, the time itself is exported.
    let mut profile = fixtures::typical();
    profile.meta.period_ns = 0;
    let found = kinds(&read(&profile, &ExportOptions::default()));
    let cpu = (of_kind("cpu", "nanoseconds", ("cpu", 1)), ns);
    assert_eq!(found, BTreeMap::from([cpu]));
}

#[test]
fn services_are_containers_units_or_processes() {
    let mut profile = fixtures::typical();
    let string = |profile: &mut Profile, text: &str| {
        profile.strings.push(text.to_owned());
        aiprof::profile::StrId(profile.strings.len() as u32 - 1)
    };
    let id = "0123456789abcdef".repeat(4);
    let path = format!("/kubepods.slice/cri-containerd-{id}.scope");
    let cgroup = string(&mut profile, &path);
    let (key, name) = (
        string(&mut profile, "container_name"),
        string(&mut profile, "server"),
    );
    profile.processes[1].labels = vec![(key, name)];
    for sample in &mut profile.samples {
        sample.cgroup = match sample.process.0 {
            0 => sample.cgroup,
            1 => Some(cgroup),
            _ => None,
        };
    }
    let data = read(&profile, &ExportOptions::default());
    let found = services(&data);
    assert_eq!(
        found.keys().collect::<Vec<_>>(),
        ["job", "kworker", "node", "server"]
    );
    assert_eq!(found["server"]["container.id"], id);
    assert_eq!(found["server"]["k8s.container.name"], "server");
    // The label `service` of a recording is the one of all.
    let (key, value) = (
        string(&mut profile, "service"),
        string(&mut profile, "shop"),
    );
    profile.labels = vec![(key, value)];
    let data = read(&profile, &ExportOptions::default());
    assert_eq!(services(&data).keys().collect::<Vec<_>>(), ["shop"]);
}

#[test]
fn a_time_without_samples_is_told_of() {
    let data = read(&fixtures::empty(), &ExportOptions::default());
    let profile = profiles(&data).next().unwrap();
    assert!(profile.samples.is_empty());
    assert_eq!(profile.duration_nano, 30_000_000_000);
}
