//! Profiles with samples of devices, in all formats.

use crate::export;
use crate::fixtures::{self, At, Fixture};
use crate::golden::{check, own_part};
use aiprof::export::device::DeviceTotals;
use aiprof::export::diff::{self, ComparedProfile, DiffOptions};
use aiprof::export::pprof::{self, proto};
use aiprof::export::summary::{self, SummaryOptions};
use aiprof::export::{
    ExportOptions, FileFormat, Shown, Weight, folded, formats, processes_left_out,
};
use aiprof::import::{iaprof, unitrace_csv};
use aiprof::profile::{
    Device, DeviceCode, FrameKind, LossKind, Method, Profile, StallReason, StallTable,
};
use aiprof_tables::compare::shares::SharesCompared;

/// A Python program and a C++ one on two devices, one of them replayed. 30 CPU samples of 300 ms;
/// 1,000 device samples of 500 ms: 900 attributed, 60 estimated and 40 unattributed.
pub(crate) fn ai() -> Profile {
    fixture().builder.finish()
}

fn fixture() -> Fixture {
    let mut f = Fixture::new();
    let gt0 = f.device("xe 0000:03:00.0 GT0", false);
    let gt1 = f.device("xe 0000:03:00.0 GT1 <b>", true);
    let start = f.frame("_start", FrameKind::Native);
    let python = f.frame("step (train.py)", FrameKind::Interpreter);
    let launch = f.frame("NEO::CommandQueue::enqueue", FrameKind::Native);
    let ioctl = f.frame("ioctl", FrameKind::Native);
    let kernel = f.frame("xe_exec_ioctl", FrameKind::Kernel);
    let train = [start, python, launch, ioctl, kernel];
    let matmul = [start, launch, ioctl, kernel];
    f.weighed(11, "train", &train[..3], 20, 200_000_000);
    f.weighed(12, "matmul", &matmul, 10, 100_000_000);

    let gemm = At {
        device: gt0,
        kernel: "gemm<float>",
        inlined: &["tile::load"],
        line: ("gemm.cl", 40),
        mnemonic: "send",
        reason: StallReason::Sbid,
        offset: 0x1b8,
        method: Method::Sole,
    };
    f.device_samples(11, "train", &train, &gemm, 600, 300_000_000);
    let sending = At {
        reason: StallReason::Send,
        ..gemm
    };
    f.device_samples(11, "train", &train, &sending, 100, 50_000_000);
    let copy = At {
        device: gt1,
        kernel: "CopyBufferRectBytes2d",
        inlined: &[],
        line: ("copy_buffer_rect.cl", 3),
        mnemonic: "mul",
        reason: StallReason::Sbid,
        offset: 0xf8,
        method: Method::Sole,
    };
    f.device_samples(12, "matmul", &matmul, &copy, 200, 100_000_000);
    let shared = At {
        method: Method::Launches,
        ..copy
    };
    f.device_samples(12, "matmul", &matmul, &shared, 60, 30_000_000);
    let lost = At {
        reason: StallReason::Active,
        offset: 0x10,
        method: Method::Unattributed,
        ..copy
    };
    let nobody = f.frame("[unattributed]", FrameKind::Unknown);
    f.device_samples(0, "[unknown]", &[nobody], &lost, 40, 20_000_000);
    f.builder.losses().add(LossKind::DeviceDrops, 3);
    f
}

fn options() -> ExportOptions {
    ExportOptions {
        weight: Weight::Samples,
        ..ExportOptions::default()
    }
}

fn lines(options: &ExportOptions) -> Vec<String> {
    let text = export(&ai(), &formats::FOLDED, options);
    let text = String::from_utf8(text).unwrap();
    text.lines().map(str::to_owned).collect()
}

#[test]
fn totals_are_apart() {
    let totals = DeviceTotals::of(&ai());
    assert_eq!(
        totals.lines(),
        [
            "CPU 300 ms, devices 500 ms; widths are their sum, not wall time",
            "1,000 device samples: 90.0% attributed, 6.0% estimated (50.0% of it certain), \
             4.0% unattributed",
            "devices dropped samples 3 times",
            "replayed (synthetic or recorded) device: xe 0000:03:00.0 GT1 <b>",
        ]
    );
    let mut twice = totals.clone();
    twice.add(&ai());
    assert_eq!(twice.device_samples, 2 * totals.device_samples);
    assert_eq!(twice.replayed, totals.replayed);
}

#[test]
fn folded_lines_have_the_grammar_of_device_frames() {
    let found = lines(&ExportOptions {
        shown: Shown::Device,
        ..options()
    });
    // By hand from the fixture.
    let cpu =
        "train;11;_start;step (train.py)_[p];NEO::CommandQueue::enqueue;ioctl;xe_exec_ioctl_[k]";
    let gemm = "src_[G];gemm.cl_[G];gemm<float>_[G];tile::load_[G];gemm.cl:40_[G];send_[g]";
    let copy = "src_[G];copy_buffer_rect.cl_[G];CopyBufferRectBytes2d_[G];copy_buffer_rect.cl:3_[G];mul_[g]";
    let expected = [
        format!("[unknown];0;[unattributed];-;{copy};active_[g];0x10_[g] 40"),
        format!(
            "matmul;12;_start;NEO::CommandQueue::enqueue;ioctl;xe_exec_ioctl_[k];-;{copy};sbid_[g];0xf8_[g] 260"
        ),
        format!("{cpu};-;{gemm};sbid_[g];0x1b8_[g] 600"),
        format!("{cpu};-;{gemm};send_[g];0x1b8_[g] 100"),
    ];
    assert_eq!(found, expected);
}

#[test]
fn each_sample_is_shown_under_one_of_both_options() {
    let count = |shown| {
        let text = export(
            &ai(),
            &formats::FOLDED,
            &ExportOptions { shown, ..options() },
        );
        folded::read(&mut text.as_slice()).unwrap().total
    };
    assert_eq!(count(Shown::All), 1030);
    assert_eq!(count(Shown::Cpu), 30);
    assert_eq!(count(Shown::Device), 1000);
}

#[test]
fn inverted_lines_are_the_same_lines_backwards() {
    let plain = lines(&options());
    let mut inverted: Vec<String> = lines(&ExportOptions {
        inverted: true,
        ..options()
    });
    let first = inverted.first().unwrap();
    assert!(
        first.starts_with("0x10_[g];active_[g];mul_[g];copy_buffer_rect.cl:3_[G];"),
        "{first}"
    );
    for line in &mut inverted {
        let (stack, value) = line.rsplit_once(' ').unwrap();
        let stack: Vec<&str> = stack.rsplit(';').collect();
        *line = format!("{} {value}", stack.join(";"));
    }
    inverted.sort();
    let mut sorted = plain;
    sorted.sort();
    assert_eq!(inverted, sorted);
}

#[test]
fn by_stall_the_reason_comes_first_and_a_mnemonic_of_that_name_stays() {
    let found = lines(&ExportOptions {
        by_stall: true,
        shown: Shown::Device,
        ..options()
    });
    let sending = found.iter().find(|line| line.ends_with(" 100")).unwrap();
    assert!(
        sending.contains(";-;send_[g];src_[G];gemm.cl_[G];gemm<float>_[G];tile::load_[G];gemm.cl:40_[G];send_[g];0x1b8_[g]"),
        "{sending}"
    );
    assert!(found.iter().all(|line| {
        let (_, device) = line.split_once(";-;").unwrap();
        let reason = device.split_once("_[g];src_[G];").unwrap().0;
        StallReason::of_name(reason).is_some()
    }));
}

#[test]
fn flame_graphs_show_device_frames() {
    for (name, inverted, by_stall) in [
        ("ai.svg", false, false),
        ("ai-inverted.svg", true, false),
        ("ai-by-stall.svg", false, true),
    ] {
        let options = ExportOptions {
            inverted,
            by_stall,
            ..ExportOptions::default()
        };
        let svg = String::from_utf8(export(&ai(), &formats::SVG, &options)).unwrap();
        for text in [
            "[replayed device] whole machine, 30.0 s: sleep 30",
            "30 CPU samples, 300 ms on CPU, 1,000 device samples, 500 ms on devices",
            "device: xe 0000:03:00.0 GT1 &lt;b&gt;</text>",
            "90.0% attributed, 6.0% estimated (50.0% of it certain), 4.0% unattributed</text>",
            "devices dropped samples 3 times</text>",
            ">device software</text>",
            ">device hardware</text>",
        ] {
            assert!(svg.contains(text), "no {text} in {name}");
        }
        check(name, &own_part(&svg));
    }
    let options = ExportOptions {
        shown: Shown::Cpu,
        ..ExportOptions::default()
    };
    let svg = String::from_utf8(export(&ai(), &formats::SVG, &options)).unwrap();
    assert!(svg.contains("shown: CPU samples only</text>"));
    assert!(!svg.contains(">device hardware</text>"));
}

#[test]
fn profiles_of_devices_are_about_who_launched_work() {
    let mut f = fixture();
    let cc = f.frame("compile", FrameKind::Native);
    f.weighed(70, "cc1plus", &[cc], 900, 9_000_000_000);
    f.weighed(71, "cc1plus", &[cc], 100, 1_000_000_000);
    let profile = f.builder.finish();
    let draw = |options: &ExportOptions| {
        String::from_utf8(export(&profile, &formats::SVG, options)).unwrap()
    };
    let line = "shown: 2 processes that launched work, 300 ms on CPU; not shown: 2 processes, \
                10.0 s on CPU (--all-processes shows all)";
    let left_out = processes_left_out(&profile, &ExportOptions::default());
    assert_eq!(left_out.as_deref(), Some(line));
    let svg = draw(&ExportOptions::default());
    assert!(svg.contains(&format!("{line}</text>")) && svg.contains("total_samples=\"800000\""));
    assert!(svg.contains("<title>train (") && !svg.contains("cc1plus"));
    for (all_processes, shown) in [(true, Shown::All), (false, Shown::Cpu)] {
        let svg = draw(&ExportOptions {
            all_processes,
            shown,
            ..ExportOptions::default()
        });
        assert!(svg.contains("<title>cc1plus (") && !svg.contains("not shown"));
    }
    // The same in folded stacks and pprof.
    for all_processes in [false, true] {
        let options = ExportOptions {
            all_processes,
            loss_comments: true,
            ..ExportOptions::default()
        };
        let folded = String::from_utf8(export(&profile, &formats::FOLDED, &options)).unwrap();
        assert_eq!(folded.contains("cc1plus;70;compile 9000000"), all_processes);
        assert_eq!(folded.contains(&format!("# {line}\n")), !all_processes);
        assert!(folded.lines().any(|l| l.starts_with("train;")), "{folded}");
        let packed = pprof::convert(&profile, &options);
        let comments = packed.comment.iter();
        let mut comments = comments.map(|&at| packed.string_table[at as usize].as_str());
        assert_eq!(comments.any(|comment| comment == line), !all_processes);
        let total: i64 = packed.sample.iter().map(|sample| sample.value[0]).sum();
        assert_eq!(total, if all_processes { 1030 } else { 30 });
    }
}

#[test]
fn stacks_begin_with_the_whole_device_that_samples_are_of() {
    let options = ExportOptions {
        by_label: Some("device".to_owned()),
        ..options()
    };
    let text = String::from_utf8(export(&ai(), &formats::FOLDED, &options)).unwrap();
    let roots: std::collections::BTreeSet<_> = text
        .lines()
        .filter_map(|line| line.split(';').next())
        .collect();
    let expected = [
        "[no device]",
        "device=xe 0000:03:00.0",
        "device=xe 0000:03:00.0 GT1 <b>",
    ];
    assert_eq!(roots.into_iter().collect::<Vec<_>>(), expected);
    assert!(
        text.contains("\ndevice=xe 0000:03:00.0;train;11;"),
        "{text}"
    );
}

#[test]
fn samples_of_unknown_launchers_hide_nobody() {
    let mut f = Fixture::new();
    let main = f.frame("main", FrameKind::Native);
    f.weighed(70, "cc1plus", &[main], 9, 90_000_000);
    let device = f.device("xe", false);
    let nobody = f.frame("[unattributed]", FrameKind::Unknown);
    let lost = At {
        device,
        kernel: "gemm",
        inlined: &[],
        line: ("gemm.cl", 1),
        mnemonic: "mul",
        reason: StallReason::Active,
        offset: 0x10,
        method: Method::Unattributed,
    };
    f.device_samples(0, "[unknown]", &[nobody], &lost, 40, 20_000_000);
    let svg = export(
        &f.builder.finish(),
        &formats::SVG,
        &ExportOptions::default(),
    );
    let svg = String::from_utf8(svg).unwrap();
    assert!(svg.contains("<title>cc1plus (") && !svg.contains("not shown"));
}

#[test]
fn comments_of_folded_files_say_it_too_and_are_no_stacks() {
    let options = ExportOptions {
        loss_comments: true,
        ..options()
    };
    let text = export(&ai(), &formats::FOLDED, &options);
    let comments: Vec<String> = String::from_utf8(text.clone())
        .unwrap()
        .lines()
        .filter_map(|line| line.strip_prefix("# ").map(str::to_owned))
        .collect();
    let totals = DeviceTotals::of(&ai()).lines();
    assert_eq!(comments[..totals.len()], totals);
    assert_eq!(folded::read(&mut text.as_slice()).unwrap().total, 1030);
}

#[test]
fn the_terminal_has_a_table_of_device_kernels() {
    let mut out = Vec::new();
    summary::write(&ai(), &SummaryOptions::default(), &mut out).unwrap();
    let text = String::from_utf8(out).unwrap();
    let row = |name: &str| {
        let line = text.lines().find(|line| line.ends_with(name)).unwrap();
        line.split_whitespace()
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    // 700 of 1,000 samples and 350 of 500 ms; 600 of the 700 wait for a scoreboard.
    assert_eq!(
        row("gemm<float>"),
        ["70.0%", "350", "ms", "700", "85.7%", "sbid", "gemm<float>"]
    );
    assert_eq!(
        row("CopyBufferRectBytes2d")[..4],
        ["30.0%", "150", "ms", "300"]
    );
    check("ai.summary.txt", &text);
}

fn text(profile: &proto::PprofProfile, index: i64) -> &str {
    &profile.string_table[index as usize]
}

#[test]
fn pprof_has_types_of_devices() {
    let message = pprof::convert(&ai(), &ExportOptions::default());
    let types: Vec<_> = message
        .sample_type
        .iter()
        .map(|t| format!("{}/{}", text(&message, t.r#type), text(&message, t.unit)))
        .collect();
    assert_eq!(
        types,
        [
            "samples/count",
            "cpu/nanoseconds",
            "device_samples/count",
            "device_time/nanoseconds",
            "stall_active/count",
            "stall_send/count",
            "stall_sbid/count",
        ]
    );
    let mut sums = vec![0; types.len()];
    for sample in &message.sample {
        assert_eq!(sample.value.len(), types.len());
        sums.iter_mut()
            .zip(&sample.value)
            .for_each(|(sum, v)| *sum += v);
    }
    assert_eq!(sums, [30, 300_000_000, 1000, 500_000_000, 40, 100, 860]);
    assert_eq!(text(&message, message.default_sample_type), "cpu");
    let only = ExportOptions {
        shown: Shown::Device,
        ..ExportOptions::default()
    };
    let devices = pprof::convert(&ai(), &only);
    assert_eq!(text(&devices, devices.default_sample_type), "device_time");
    let cpu = ExportOptions {
        shown: Shown::Cpu,
        ..ExportOptions::default()
    };
    assert_eq!(pprof::convert(&ai(), &cpu).sample_type.len(), 2);
}

#[test]
fn pprof_tells_device_code_and_its_attribution() {
    let message = pprof::convert(&ai(), &ExportOptions::default());
    let sample = message.sample.iter().find(|s| s.value[2] == 60).unwrap();
    let labels: Vec<_> = sample
        .label
        .iter()
        .map(|l| (text(&message, l.key), text(&message, l.str), l.num))
        .collect();
    for label in [
        ("device", "xe 0000:03:00.0 GT1 <b>", 0),
        ("method", "shared by launch count", 0),
        ("certain", "", 30),
        ("possible", "", 90),
    ] {
        assert!(labels.contains(&label), "no {label:?} in {labels:?}");
    }
    let leaf = &message.location[sample.location_id[0] as usize - 1];
    let mapping = &message.mapping[leaf.mapping_id as usize - 1];
    assert_eq!(
        text(&message, mapping.filename),
        "[replayed device xe 0000:03:00.0 GT1 <b>]"
    );
    let line = sample.location_id.iter().find_map(|id| {
        let line = message.location[*id as usize - 1].line[0];
        (line.line == 3).then_some(line)
    });
    let function = &message.function[line.unwrap().function_id as usize - 1];
    assert_eq!(text(&message, function.filename), "copy_buffer_rect.cl");
    // The host's frames are in no device's mapping.
    let root = sample.location_id.last().unwrap();
    assert_eq!(message.location[*root as usize - 1].mapping_id, 0);
}

#[test]
fn go_reads_device_types() {
    let file = export(&ai(), &formats::PPROF, &ExportOptions::default());
    let top = |index: &str| crate::pprof::go_pprof(&file, &["-top", "-cum", index]);
    let Some(text) = top("-sample_index=stall_sbid") else {
        return;
    };
    assert!(text.contains("Type: stall_sbid"), "{text}");
    assert!(text.contains("100% of 860 total"), "{text}");
    let text = top("-sample_index=device_time").unwrap();
    assert!(text.contains("Type: device_time"), "{text}");
    assert!(text.contains("500ms total"), "{text}");
    let gemm = text
        .lines()
        .find(|line| line.ends_with("gemm<float>"))
        .unwrap();
    assert!(gemm.contains("350ms 70.00%"), "{gemm}");
}

#[test]
fn differences_ignore_offsets_unless_asked() {
    let read = |text: &str| folded::read(&mut text.as_bytes()).unwrap();
    let before = read(
        "a;1;main;-;k_[G];mul_[g];sbid_[g];0x10_[g] 60\na;1;main;-;k_[G];add_[g];sync_[g];0x20_[g] 40\n",
    );
    let after = read(
        "a;2;main;-;k_[G];mul_[g];sbid_[g];0x18_[g] 60\na;2;main;-;k_[G];add_[g];sync_[g];0x28_[g] 40\n",
    );
    let table = |keep_offsets| {
        let options = DiffOptions {
            keep_offsets,
            ..DiffOptions::default()
        };
        let of = |stacks: &folded::FoldedStacks| ComparedProfile {
            stacks: stacks.clone(),
            ..ComparedProfile::default()
        };
        let (before, after) = (of(&before), of(&after));
        let found = diff::compare(&before, &after, &options);
        diff::table(&before, &after, &options, &found, 10)
    };
    assert!(table(false).rows.is_empty(), "{:?}", table(false));
    assert!(table(false).title.starts_with("nothing changed"));
    let kept = format!("{:?}", table(true));
    assert!(
        kept.contains("0x18_[g]") && kept.contains("0x10_[g]"),
        "{kept}"
    );
    let mut out = Vec::new();
    let (options, none) = (DiffOptions::default(), SharesCompared::default());
    diff::write_svg(&before, &after, "t", &options, &none, &mut out).unwrap();
    let svg = String::from_utf8(out).unwrap();
    assert!(svg.contains("sbid (60") && !svg.contains("0x1"), "{svg}");
}

#[test]
fn stall_tables_add_up_call_paths() {
    let table = StallTable::of(&ai());
    let rows: Vec<_> = table
        .devices
        .iter()
        .flat_map(|device| device.rows.iter().map(move |row| (&*device.name, row)))
        .map(|(device, row)| (device, &*row.kernel, row.offset, row.counts))
        .collect();
    let counts = |of: &[(StallReason, u64)]| {
        let mut counts = [0; StallReason::ALL.len()];
        of.iter()
            .for_each(|&(reason, n)| counts[reason as usize] = n);
        counts
    };
    use StallReason::{Active, Sbid, Send};
    let (gt0, gt1) = ("xe 0000:03:00.0 GT0", "xe 0000:03:00.0 GT1 <b>");
    let copy = "CopyBufferRectBytes2d";
    assert_eq!(
        rows,
        [
            (
                gt0,
                "gemm<float>",
                0x1b8,
                counts(&[(Sbid, 600), (Send, 100)])
            ),
            (gt1, copy, 0x10, counts(&[(Active, 40)])),
            (gt1, copy, 0xf8, counts(&[(Sbid, 260)])),
        ]
    );
    assert_eq!((table.total(), StallTable::uncounted(&ai())), (1000, 0));
    assert_eq!(StallTable::of(&fixtures::typical()), StallTable::default());
}

#[test]
fn a_replayed_device_without_samples_is_named_too() {
    let mut f = Fixture::new();
    f.builder.device(Device {
        name: "file x.bin".to_owned(),
        replayed: true,
    });
    let profile = f.builder.finish();
    let svg = export(&profile, &formats::SVG, &ExportOptions::default());
    let svg = String::from_utf8(svg).unwrap();
    assert!(svg.contains("replayed (synthetic or recorded) device: file x.bin</text>"));
    assert!(svg.contains("No samples were recorded."));
}

#[test]
fn tables_of_stalls_survive_unitraces_csv() {
    let csv = export(
        &ai(),
        FileFormat::named("unitrace-csv").unwrap(),
        &ExportOptions::default(),
    );
    let read = unitrace_csv::read(&mut csv.as_slice()).unwrap();
    assert_eq!(read.skipped, 0);
    let table = StallTable::of(&ai());
    let rows =
        |table: &StallTable| -> Vec<_> { table.devices.iter().map(|d| d.rows.clone()).collect() };
    assert_eq!(rows(&read.table), rows(&table));
    check("ai.stalls.csv", &String::from_utf8(csv).unwrap());
    let nothing = export(
        &fixtures::typical(),
        FileFormat::named("unitrace-csv").unwrap(),
        &ExportOptions::default(),
    );
    assert!(nothing.is_empty());
}

#[test]
fn profiles_survive_iaprofs_text_but_for_what_it_has_no_place_for() {
    let text = export(
        &ai(),
        FileFormat::named("iaprof").unwrap(),
        &ExportOptions::default(),
    );
    check("ai.iaprof", std::str::from_utf8(&text).unwrap());
    let again = iaprof::read(&mut text.as_slice()).unwrap();
    assert_eq!(again.losses.iter().count(), 0);
    let folded = |profile: &Profile| {
        let options = ExportOptions {
            shown: Shown::Device,
            ..options()
        };
        let text = export(profile, &formats::FOLDED, &options);
        let lines = String::from_utf8(text).unwrap();
        let lines = lines.lines().map(|line| {
            let dropped = [
                "tile::load_[G];",
                "gemm.cl:40_[G];",
                "copy_buffer_rect.cl:3_[G];",
            ];
            dropped
                .iter()
                .fold(line.to_owned(), |line, d| line.replace(d, ""))
        });
        lines.collect::<Vec<_>>()
    };
    assert_eq!(folded(&again), folded(&ai()));
    let (before, after) = (DeviceTotals::of(&ai()), DeviceTotals::of(&again));
    assert_eq!(after.unattributed, before.unattributed);
    assert_eq!(after.estimated, before.attributed + before.estimated);
    assert!(after.device_ns.abs_diff(before.device_ns) < 1000);
}

#[test]
fn sums_survive_every_format_whatever_the_schedule() {
    for seed in 0..30 {
        let profile = fixtures::random_devices(seed);
        let total: u64 = profile.samples.iter().map(|s| s.count).sum();
        let all = ExportOptions {
            all_processes: true,
            ..options()
        };
        for options in [
            all.clone(),
            ExportOptions {
                by_stall: true,
                ..all.clone()
            },
            ExportOptions {
                inverted: true,
                ..all.clone()
            },
        ] {
            let text = export(&profile, &formats::FOLDED, &options);
            assert_eq!(folded::read(&mut text.as_slice()).unwrap().total, total);
        }
        let message = pprof::convert(&profile, &all);
        let sum = |from: usize| -> u64 {
            let values = message
                .sample
                .iter()
                .flat_map(|s| s.value.iter().skip(from));
            values.map(|v| *v as u64).sum()
        };
        let stalls: i64 = message.sample.iter().flat_map(|s| &s.value[4..]).sum();
        let time = profile.total_time_ns();
        // Counts and times of both kinds, and device counts once more by reason.
        assert_eq!(sum(0), total + time + stalls as u64);
        let devices = DeviceTotals::of(&profile);
        assert_eq!(stalls as u64, devices.device_samples);
        assert_eq!(
            devices.attributed + devices.estimated + devices.unattributed,
            devices.device_samples
        );
        let csv = export(
            &profile,
            FileFormat::named("unitrace-csv").unwrap(),
            &options(),
        );
        let table = unitrace_csv::read(&mut csv.as_slice()).unwrap().table;
        assert_eq!(table.total(), devices.device_samples);
        let text = export(&profile, FileFormat::named("iaprof").unwrap(), &options());
        let again = iaprof::read(&mut text.as_slice()).unwrap();
        assert_eq!(again.total_count(), devices.device_samples);
    }
}

#[test]
fn what_has_no_instruction_is_in_no_table_and_shares_of_nothing_in_no_stack() {
    let mut f = Fixture::new();
    let main = f.frame("main", FrameKind::Native);
    let at = At {
        device: f.device("GT0", false),
        kernel: "src",
        inlined: &[],
        line: ("k.cl", 1),
        mnemonic: "send",
        reason: StallReason::Sbid,
        offset: 8,
        method: Method::Work,
    };
    f.device_samples(1, "a", &[main], &at, 5, 100_000);
    let many = At {
        offset: DeviceCode::MANY,
        ..at
    };
    f.device_samples(1, "a", &[main], &many, 7, 100_000);
    // Less than a sample, but time.
    let part = At { offset: 16, ..at };
    f.device_samples(1, "a", &[main], &part, 0, 50_000);
    let profile = f.builder.finish();

    assert_eq!(StallTable::of(&profile).total(), 5);
    assert_eq!(StallTable::of(&profile).devices[0].rows.len(), 1);
    assert_eq!(StallTable::uncounted(&profile), 7);
    let lines = |options: &ExportOptions| {
        let text = export(&profile, &formats::FOLDED, options);
        String::from_utf8(text).unwrap().lines().count()
    };
    assert_eq!(
        (lines(&options()), lines(&ExportOptions::default())),
        (2, 3)
    );
    // The directory is called as the kernel is.
    let text = export(&profile, FileFormat::named("iaprof").unwrap(), &options());
    let text = String::from_utf8(text).unwrap();
    assert!(
        text.contains("\tsrc/k.cl\n") && text.contains("\tsrc\n"),
        "{text}"
    );
    assert_eq!(text.matches("eustall").count(), 1, "{text}");
}
