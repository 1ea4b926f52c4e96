use super::*;
use crate::analyze::messages::Level;

fn tables(log: &str) -> (IdealTables, Vec<String>) {
    let mut messages = Messages::new(Level::Warn);
    let tables = read(&mut log.as_bytes(), &mut messages).unwrap();
    let texts = messages.iter().map(|m| m.text.clone()).collect();
    (tables, texts)
}

fn kernel(table: &IdealTable, name: &str) -> (u64, String) {
    let kernel = table.kernel(name).unwrap();
    (kernel.cycles, table.categories()[kernel.category].clone())
}

const START: &str = "~~~~ Ideal/Total Cycles ~~~~\n";
const END: &str = "====== Perf Summary End ======\n";

#[test]
fn rows_have_a_kernel_a_category_and_cycles() {
    let log = format!(
        "noise-opCatX 5\n{START}Name      Ideal Cy.\n----\n\
         mm-BMM_1-opCatBmm_fp16    27648   \nadd-opCatBroadcast   0\r\nrelu-NA 7\n\
         weights-LxPreload-opCatX 9\nPrecomputeA-opCatX 9\nplain 3\n tail-opCatX 4\n\
         tab-opCatX\t4\nTotal\t\t\t999\n-opCatX 5\nbig-opCatX 99999999999999999999\n{END}\
         late-opCatX 5\n"
    );
    let (tables, warnings) = tables(&log);
    let [table] = tables.tables() else {
        panic!("one table")
    };
    assert_eq!(kernel(table, "mm-BMM_1"), (27648, "Bmm_fp16".to_owned()));
    assert_eq!(kernel(table, "add"), (0, "Broadcast".to_owned()));
    assert_eq!(kernel(table, "relu"), (7, "NotAvailable".to_owned()));
    assert_eq!(kernel(table, "plain"), (3, "NotAvailable".to_owned()));
    assert_eq!(table.rows(), 4);
    assert_eq!(table.total_cycles(), 27648 + 7 + 3);
    assert_eq!(table.phase, Phase::Unknown);
    assert_eq!(
        warnings,
        ["UTL: 1 rows with impossible cycle counts were skipped"]
    );
}

#[test]
fn the_total_row_is_no_kernel() {
    let (tables, _) = tables(&format!("{START}a-opCatX 5\nTotal    12\n{END}"));
    let table = &tables.tables()[0];
    assert_eq!(
        (table.rows(), table.cycles(), table.total_cycles()),
        (1, 5, 12)
    );
    assert_eq!(table.kernel("Total"), None);
}

#[test]
fn tables_have_the_phase_that_was_announced() {
    let log = format!(
        "{START}a-opCatX 1\n{END}   PREFILL  \n{START}a-opCatX 2\n{END}DECODING\n\
         {START}a-opCatX 3\n{END}\tDECODING\n{START}a-opCatX 4\n{END}"
    );
    let (tables, warnings) = tables(&log);
    let phases: Vec<_> = tables.tables().iter().map(|t| t.phase.word()).collect();
    assert_eq!(phases, ["UNKN", "TTFT", "TTFT", "ITL"]);
    assert_eq!(warnings, [""; 0]);
}

/// Wording of acelyzer 1.3.0.
#[test]
fn what_is_doubtful_is_told() {
    let log = format!(
        "== DSM-AutoPilot BEGIN\nDSM-AutoPilot BEGIN\nIdeal Clock Scaling: 2\n\
         {START}a-opCatX 1\na-opCatY 2\na-opCatX 1\n{END}\
         {START}a-opCatX 1\na-opCatY 2\na-opCatX 1\n{END}"
    );
    let (tables, warnings) = tables(&log);
    assert!(tables.autopilot);
    assert_eq!(tables.tables().len(), 1);
    let twice = "UTL: Kernel already has an entry with different cycle count: a Cmpt Exec 2 1";
    let category = "UTL: Kernel->Category map already has an entry with different category: \
                    a Cmpt Exec Y X";
    assert_eq!(
        warnings,
        [
            "UTL: Detected autopilot=on. Event categorization, cycles table matching and other \
             utilization-related data might be unreliable.",
            "UTL: Found obsolete 'Ideal Cycle Scaling' setting in logfile. This setting is \
             ignored. Use '--freq=<soc>:<core>'.",
            twice,
            category,
            twice,
            category,
            "UTL: Fingerprint of current table already exists for previous table. Duplicated \
             tables? Keeping the previous table only",
        ]
    );
    let mut messages = Messages::new(Level::Warn);
    tables.closing(&mut messages);
    assert_eq!(
        messages.iter().next().unwrap().text,
        "UTL: 1/2 unique tables with ideal cycles have been detected. Utilization results \
         should be inspected carefully!!!!"
    );
}

#[test]
fn a_log_that_is_cut_off_keeps_what_is_whole() {
    let (tables, warnings) = tables(&format!("{START}a-opCatX 1\n{START}b-opCatX 2\nc-opC"));
    assert_eq!(tables.tables().len(), 2);
    assert_eq!(tables.tables()[1].rows(), 1);
    assert_eq!(
        warnings,
        ["UTL: An ideal cycles table ends early, after 1 rows; these rows are used"; 2]
    );
}

#[test]
fn a_line_without_end_takes_no_memory() {
    let long = "a".repeat(MAX_LINE + 1);
    let (tables, warnings) = tables(&format!("{START}{long}-opCatX 1\nb-opCatX 2\n{END}"));
    assert_eq!(tables.tables()[0].rows(), 1);
    assert_eq!(
        warnings,
        ["UTL: 1 lines longer than 65536 bytes were skipped"]
    );
}

#[test]
fn bytes_that_are_no_text_and_small_reads_do_no_harm() {
    let log = [
        b"\xff\xfe\n ",
        START.as_bytes(),
        b"a-opCatX 1\n\xff-opCatX 2\n",
        END.as_bytes(),
    ];
    let log = log.concat();
    let mut messages = Messages::new(Level::Warn);
    let mut input = io::BufReader::with_capacity(3, log.as_slice());
    let tables = read(&mut input, &mut messages).unwrap();
    assert_eq!(tables.tables()[0].rows(), 1);
}
