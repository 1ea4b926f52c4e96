//! The CSV of unitrace, read and written.

use super::*;
use crate::export::unitrace_csv;
use StallReason::{Active, Control, InstFetch, Sbid, Tdr};

fn parse(text: &str) -> Stalls {
    read(&mut text.as_bytes()).unwrap()
}

fn counts(of: &[(StallReason, u64)]) -> ReasonCounts {
    let mut counts = ReasonCounts::default();
    of.iter()
        .for_each(|&(reason, n)| counts[reason as usize] = n);
    counts
}

fn only(stalls: &Stalls) -> &[StallRow] {
    let [device] = stalls.table.devices.as_slice() else {
        panic!("{stalls:?}")
    };
    &device.rows
}

/// As unitrace 2.3 writes it for a Ponte Vecchio: ten columns.
const PVC: &str = "
=== Device #0 Metrics ===

                    Kernel, IP[Address], Active[Events], ControlStall[Events], PipeStall[Events], SendStall[Events], DistStall[Events], SbidStall[Events], SyncStall[Events], InstrFetchStall[Events], OtherStall[Events]
\"main::{lambda(auto:1)#3}\",         1b8,              3,                    0,                 0,                 0,                 0,               907,                 0,                       0,                  0
         \"scale<4, float>\",         100,              0,                    7,                 0,                 0,                 0,                 0,                 0,                       2,                  0
";

#[test]
fn all_decimal_offsets_are_hexadecimal_and_names_have_commas() {
    let stalls = parse(PVC);
    let rows = only(&stalls);
    assert_eq!(rows[0].kernel, "main::{lambda(auto:1)#3}");
    assert_eq!(rows[0].offset, 0x1b8);
    assert_eq!(rows[0].counts, counts(&[(Active, 3), (Sbid, 907)]));
    assert_eq!(
        (&*rows[1].kernel, rows[1].offset),
        ("scale<4, float>", 0x100)
    );
    assert_eq!(rows[1].counts, counts(&[(Control, 7), (InstFetch, 2)]));
    assert_eq!(stalls.skipped, 0);
    assert!(is_stall_csv(PVC.as_bytes()) && !is_stall_csv(b"\n\na;b 1\n"));
    let metrics = b"\n=== Device #0 Metrics ===\n\nKernel, GlobalInstanceId, GpuTime[ns]\n";
    assert!(!is_stall_csv(metrics));
}

#[test]
fn what_is_written_is_what_unitrace_writes() {
    let mut out = Vec::new();
    unitrace_csv::write_table(&parse(PVC).table, &mut out).unwrap();
    assert_eq!(String::from_utf8(out).unwrap(), PVC);
}

#[test]
fn newer_drivers_have_one_more_column_and_older_unitraces_0x() {
    let stalls = parse(
        "Kernel, IP[Address], Active[Events], PSDepStall[Events], NewStall[Events], SbidStall[Events], \n\
         \"k\", 0x00000010, 1, 2, 3, 4, \n",
    );
    let expected = counts(&[(Active, 1), (Tdr, 2), (Sbid, 4)]);
    assert_eq!(
        (only(&stalls)[0].offset, only(&stalls)[0].counts),
        (16, expected)
    );
    let mut out = Vec::new();
    unitrace_csv::write_table(&stalls.table, &mut out).unwrap();
    let text = String::from_utf8(out).unwrap();
    assert!(
        text.contains("Active[Events], PSDepStall[Events], ControlStall"),
        "{text}"
    );
    assert_eq!(parse(&text), stalls);
}

#[test]
fn sections_are_devices_and_equal_rows_are_added_up() {
    let header = "Kernel, IP[Address], SbidStall[Events]\n";
    let text = format!(
        "=== Device #10 Metrics ===\n{header}\"a\", 8, 1\n\
         === Device #9 Metrics ===\n{header}\"a\", 8, 2\n\"a\", 8, 3\n\
         === Device #10 Metrics ===\n{header}\"a\", 8, 4\n"
    );
    let table = parse(&text).table;
    let found: Vec<_> = table
        .devices
        .iter()
        .map(|d| (&*d.name, d.rows.len(), d.rows[0].counts[Sbid as usize]))
        .collect();
    assert_eq!(found, [("Device #9", 1, 5), ("Device #10", 1, 5)]);
}

#[test]
fn lines_that_are_no_rows_are_counted() {
    let header = "Kernel, IP[Address], Active[Events], SbidStall[Events]\n";
    for bad in [
        "\"k\", 10, 1",
        "\"k\", 10, 1, -2",
        "\"k\", 10, +1, 2",
        "\"k\", 10, 1, 2.5",
        "\"k\", 1g, 1, 2",
        "\"k\", , 1, 2",
        "\"k\", +8, 1, 2",
        "\"k\", 10, 1, 99999999999999999999",
        "\"k\", 11112222333344445, 1, 2",
        "\"\", 10, 1, 2",
        "noise",
        "=== Device #0",
    ] {
        let stalls = parse(&format!("{header}{bad}\n\"k\", 20, 1, 2\n"));
        assert_eq!(
            (stalls.skipped, stalls.first_skipped),
            (1, Some(2)),
            "{bad}"
        );
        assert_eq!(only(&stalls).len(), 1, "{bad}");
    }
    let before = parse(&format!("\"k\", 10, 1, 2\n{header}"));
    assert_eq!((before.skipped, before.table.total()), (1, 0));
}

#[test]
fn a_cut_last_line_is_not_believed() {
    let whole = "Kernel, IP[Address], SbidStall[Events]\n\"k\", 8, 1\n\"k\", 10, 123\n";
    for end in whole.len() - 14..whole.len() {
        let stalls = parse(&whole[..end]);
        let is_cut = !whole[..end].ends_with('\n');
        assert_eq!(stalls.skipped, u64::from(is_cut), "{:?}", &whole[..end]);
        assert!(stalls.table.total() <= 1);
    }
}

#[test]
fn names_that_vanish_keep_their_counts() {
    testing::fuzz_unitrace_csv(
        b"Kernel, IP[Address], SbidStall[Events]\n\"\x01\", 8, 1\n\"\"\", 8, 1\n",
    );
}

#[test]
fn other_files_are_refused_and_sums_stop_at_the_end() {
    for text in [
        "",
        "\n\n",
        "Kernel, GlobalInstanceId, GpuTime[ns]\n\"k\", 1, 5\n",
        "a;b 1\n",
    ] {
        let error = read(&mut text.as_bytes()).unwrap_err();
        assert!(matches!(error, StallCsvError::NotStalls), "{text:?}");
    }
    let row = format!("\"k\", 8, {}\n", u64::MAX);
    let text = format!("Kernel, IP[Address], SbidStall[Events]\n{row}{row}");
    assert_eq!(parse(&text).table.total(), u64::MAX);
    let long = format!("Kernel, IP[Address]\n{}", "x".repeat(MAX_LINE + 1));
    let error = read(&mut long.as_bytes()).unwrap_err();
    assert!(matches!(error, StallCsvError::LineTooLong { line: 2 }));
}

#[test]
fn damaged_files_never_panic() {
    let bytes = PVC.as_bytes();
    for i in 0..bytes.len() {
        testing::fuzz_unitrace_csv(&bytes[..i]);
        for byte in [0, b',', b'"', b'\n', 0xff, b'9'] {
            let mut damaged = bytes.to_vec();
            damaged[i] = byte;
            testing::fuzz_unitrace_csv(&damaged);
        }
    }
}
