//! iaprof's text, read and written.

use super::*;
use crate::export::{self, ExportOptions, Weight};
use aiprof_model::profile::{Method, StallTable};

fn parse(text: &str) -> Profile {
    read(&mut text.as_bytes()).unwrap()
}

fn folded(profile: &Profile, weight: Weight) -> Vec<String> {
    let options = ExportOptions {
        weight,
        ..ExportOptions::default()
    };
    let mut out = Vec::new();
    export::folded::write(profile, &options, &mut out).unwrap();
    let text = String::from_utf8(out).unwrap();
    text.lines().map(str::to_owned).collect()
}

fn written(profile: &Profile) -> String {
    let mut out = Vec::new();
    export::iaprof::write(profile, &mut out).unwrap();
    String::from_utf8(out).unwrap()
}

/// Two intervals of 10 ms, the device busy for 50 % and 80 % of them. The strings of
/// mnemonics stand between the lines that need them, as iaprof writes them.
const TEXT: &str = "\
string\t1\tmatrix.dpcpp
string\t2\t_start;main;NEO::SysCalls::ioctl;ioctl
string\t3\tsrc/copy.cl
string\t4\tCopyBuffer
interval\t0\t100.010000
kernel\t0x1000\t1\t42\t2\t3\t4
string\t5\tmul
eustall\t0xf8\t5\t1\t2\t3\t4\t5\t6\t7\t8\t9\t10
metric\tbusy-percent\t50
interval\t1\t100.020000
kernel\t0x1000\t1\t42\t2\t3\t4
eustall\t0xf8\t5\t0\t0\t0\t0\t0\t45\t0\t0\t0\t0
string\t6\tsend
eustall\t0x108\t6\t0\t0\t0\t15\t0\t0\t0\t0\t0\t0
metric\teu-stall-sbid\t45
metric\tbusy-percent\t80
";

#[test]
fn counts_become_stacks() {
    let profile = parse(TEXT);
    let mut expected: Vec<String> = StallReason::ALL
        .into_iter()
        .zip([1, 2, 3, 4, 5, 6 + 45, 7, 8, 9, 10])
        .map(|(reason, n)| (format!("mul_[g];{}_[g];0xf8_[g]", reason.name()), n))
        .chain([("send_[g];send_[g];0x108_[g]".to_owned(), 15)])
        .map(|(leaf, n)| {
            format!(
                "matrix.dpcpp;42;_start;main;NEO::SysCalls::ioctl;ioctl;-;\
                 src_[G];copy.cl_[G];CopyBuffer_[G];{leaf} {n}"
            )
        })
        .collect();
    let mut found = folded(&profile, Weight::Samples);
    expected.sort();
    found.sort();
    assert_eq!(found, expected);
    assert_eq!(profile.losses.iter().count(), 0);
    let [device] = profile.devices.as_slice() else {
        panic!("one device")
    };
    assert!(device.replayed);
    assert!(profile.samples.iter().all(|sample| {
        let device = sample.device.unwrap();
        (device.method, device.certain) == (Method::Latest, 0)
    }));
}

#[test]
fn time_is_the_busy_time_of_each_interval() {
    let profile = parse(TEXT);
    // The first interval is as long as the second: 10 ms, 5 ms busy; then 8 ms.
    assert_eq!(profile.total_time_ns(), 13_000_000);
    assert_eq!(profile.meta.duration_ns, 10_000_000);
    let send = profile.samples.iter().find(|s| s.count == 15).unwrap();
    assert_eq!(send.time_ns, 2_000_000);
    let untold = TEXT.replace("busy-percent", "busy");
    assert_eq!(parse(&untold).total_time_ns(), 0);
    let alone = TEXT.split("interval\t1").next().unwrap();
    assert_eq!(
        (parse(alone).total_time_ns(), parse(alone).total_count()),
        (0, 55)
    );
    for wrong in ["-5", "NaN", "inf", "1e300"] {
        let text = TEXT.replace("busy-percent\t50", &format!("busy-percent\t{wrong}"));
        assert_eq!(parse(&text).total_time_ns(), 8_000_000, "{wrong}");
    }
}

#[test]
fn what_is_written_is_read_again() {
    let profile = parse(TEXT);
    let text = written(&profile);
    let again = parse(&text);
    assert_eq!(
        folded(&again, Weight::Samples),
        folded(&profile, Weight::Samples)
    );
    assert_eq!(StallTable::of(&again), StallTable::of(&profile));
    assert_eq!(written(&again), text);
    let difference = again.total_time_ns().abs_diff(profile.total_time_ns());
    assert!(difference < 1000, "{difference} ns");
    // Strings first, then what uses them.
    let position = |line: &str| text.find(line).unwrap_or_else(|| panic!("no {line}"));
    assert!(position("string\t5\tmul\n") < position("eustall\t0xf8\t5\t1\t2\t3\t4\t5\t51\t"));
    assert!(position("metric\teu-stall-dist-acc\t5\n") > 0);
    assert!(position("metric\tbusy-percent\t130.0") > 0);
}

#[test]
fn nameless_things_have_names_that_say_so() {
    let profile = parse(
        "kernel\t0x1000\t0\t7\t0\t0\t0\neustall\t0x0\t0\t1\t0\t0\t0\t0\t0\t0\t0\t0\t0\n\
         kernel\t0x2000\t91\t7\t92\t93\t94\neustall\t0x8\t95\t1\t0\t0\t0\t0\t0\t0\t0\t0\t0\n",
    );
    assert_eq!(
        folded(&profile, Weight::Samples),
        [
            "[text missing];7;[text missing];-;[text missing]_[G];[text missing]_[G];\
             [text missing]_[g];active_[g];0x8_[g] 1",
            "[unknown];7;-;[unknown file]_[G];0x1000_[G];[failed decode]_[g];active_[g];0x0_[g] 1",
        ]
    );
}

#[test]
fn counts_without_a_kernel_stay_visible() {
    let stall = "eustall\t0x8\t0\t0\t0\t0\t0\t0\t3\t0\t0\t0\t0\n";
    for text in [
        stall.to_owned(),
        format!("string\t1\ta\nkernel\t0x0\t1\t1\t0\t0\t1\ninterval\t0\t1.0\n{stall}"),
        format!("kernel\t0x0\t0\t1\t0\t0\t0\nkernel\t0x10\tx\t1\t0\t0\t0\n{stall}"),
    ] {
        let profile = parse(&text);
        let lines = folded(&profile, Weight::Samples);
        let expected = "[unknown];0;[unattributed];-;[failed decode]_[g];sbid_[g];0x8_[g] 3";
        assert_eq!(lines, [expected], "{text}");
        let device = profile.samples[0].device.unwrap();
        assert_eq!(device.method, Method::Unattributed);
    }
}

#[test]
fn ids_may_be_given_anew() {
    let kernel = "kernel\t0x0\t1\t1\t0\t0\t1\neustall\t0x8\t0\t1\t0\t0\t0\t0\t0\t0\t0\t0\t0\n";
    let profile = parse(&format!(
        "string\t1\ta\n{kernel}string\t1\tb\n{kernel}{kernel}"
    ));
    let rows = &StallTable::of(&profile).devices[0].rows;
    let found: Vec<_> = rows
        .iter()
        .map(|row| (&*row.kernel, row.counts[0]))
        .collect();
    assert_eq!(found, [("a", 1), ("b", 2)]);
}

#[test]
fn lines_that_are_no_records_are_losses() {
    let good = "eustall\t0x8\t0\t1\t0\t0\t0\t0\t0\t0\t0\t0\t0\n";
    for (bad, kind) in [
        ("eustall\t0x8\t0\t1\n", LossKind::DeviceUndecodable),
        (
            "eustall\t8\t0\t1\t0\t0\t0\t0\t0\t0\t0\t0\t0\n",
            LossKind::DeviceUndecodable,
        ),
        (
            "eustall\t0x8\t0\t1\t0\t0\t0\t0\t0\t0\t0\t0\t-1\n",
            LossKind::DeviceUndecodable,
        ),
        (
            "eustall\t0x8\t0\t1\t0\t0\t0\t0\t0\t0\t0\t0\t0\t0\n",
            LossKind::DeviceUndecodable,
        ),
        ("string\t0\tx\n", LossKind::Undecodable),
        ("string\t99999999999999999999\tx\n", LossKind::Undecodable),
        ("interval\t1\tnan\n", LossKind::Undecodable),
        (
            "kernel\t0x1\t0\t4294967296\t0\t0\t0\n",
            LossKind::Undecodable,
        ),
        (
            "kernel\t0x10000000000000000\t0\t1\t0\t0\t0\n",
            LossKind::Undecodable,
        ),
        ("stall\n", LossKind::Undecodable),
        ("\u{fffd}\u{0}\n", LossKind::Undecodable),
    ] {
        let profile = parse(&format!("{good}{bad}{good}"));
        assert_eq!(profile.losses.get(kind), 1, "{bad:?}");
        assert_eq!(profile.total_count(), 2, "{bad:?}");
    }
    // A cut last line: what is left of a number may look like one.
    let cut = parse(&format!("{good}{}", &good[..good.len() - 1]));
    assert_eq!(cut.losses.get(LossKind::DeviceUndecodable), 1);
    assert_eq!(cut.total_count(), 1);
}

#[test]
fn huge_numbers_end_in_an_error_and_other_files_too() {
    let most = u64::MAX;
    let text = format!("eustall\t0x8\t0\t{most}\t{most}\t0\t0\t0\t0\t0\t0\t0\t0\n");
    let error = read(&mut text.as_bytes()).unwrap_err();
    assert!(
        matches!(error, IaprofError::TotalTooLarge { line: 1 }),
        "{error}"
    );
    for text in ["", "a;b 1\n", "aiprof"] {
        let error = read(&mut text.as_bytes()).unwrap_err();
        assert!(matches!(error, IaprofError::NotIaprof), "{text:?}");
        assert!(!is_iaprof(text.as_bytes()));
    }
    assert!(is_iaprof(TEXT.as_bytes()));
}

#[test]
fn deep_stacks_are_cut_and_it_is_told() {
    let stack = "f;".repeat(5000);
    let text = format!(
        "string\t1\t{stack}\nkernel\t0x0\t0\t1\t1\t0\t0\neustall\t0x8\t0\t1\t0\t0\t0\t0\t0\t0\t0\t0\t0\n"
    );
    let profile = parse(&text);
    assert_eq!(profile.losses.get(LossKind::StackTooDeep), 1);
    let line = &folded(&profile, Weight::Samples)[0];
    assert!(line.contains(";f;[stack too deep];-;"), "{}", line.len());
}

#[test]
fn suffixes_of_our_own_text_are_kinds_again() {
    let text = "string\t1\tmain;step_[p];xe_exec_[k]\nkernel\t0x0\t0\t1\t1\t0\t0\n\
                eustall\t0x8\t0\t1\t0\t0\t0\t0\t0\t0\t0\t0\t0\n";
    let line = &folded(&parse(text), Weight::Samples)[0];
    assert!(line.contains(";main;step_[p];xe_exec_[k];-;"), "{line}");
}

#[test]
fn damaged_files_never_panic() {
    let bytes = TEXT.as_bytes();
    for i in 0..bytes.len() {
        testing::fuzz_iaprof(&bytes[..i]);
        for byte in [0, b'\t', b';', b'\n', 0xff, b'9'] {
            let mut damaged = bytes.to_vec();
            damaged[i] = byte;
            testing::fuzz_iaprof(&damaged);
        }
    }
}
