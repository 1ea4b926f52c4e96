use super::compiler_log;
use super::ideal::Phase;
use super::table::{write_csv, write_text};
use super::*;
use crate::analyze::messages::Level;

/// Kernels of the shipped sample_flex_3062_job_4.json as acelyzer 1.3.0 places them
/// with `--freq 557:1100`: name, ts, dur, and the `pt_active` that it writes with
/// `-c sample_comp_log_ideal.txt`.
const SAMPLE: &[(&str, f64, f64, f64)] = &[
    (
        "convolution",
        1475000719617.1995,
        353.5763016156852,
        0.2963176791322071,
    ),
    (
        "max_pool2d_with_indices",
        1475000719972.464,
        191.66786355525255,
        0.0,
    ),
    (
        "convolution_1",
        1475000720166.073,
        35.66786355525255,
        0.3197173933889021,
    ),
    (
        "convolution_4",
        1475000720203.4634,
        109.55475762952119,
        0.4163629808647756,
    ),
    (
        "convolution_2",
        1475000720315.4485,
        196.08258527796715,
        0.5234158205698627,
    ),
    (
        "convolution_3",
        1475000720522.217,
        107.56193895824254,
        0.4240770099194087,
    ),
    ("add", 1475000720633.5447, 281.06642728857696, 0.0),
    ("relu_3", 1475000720915.8452, 176.13285457808524, 0.0),
    (
        "convolution_5",
        1475000721093.7034,
        134.7486535012722,
        0.3385157793366358,
    ),
    (
        "convolution_6",
        1475000721230.6367,
        195.90125673171133,
        0.5239003005135581,
    ),
    (
        "convolution_7",
        1475000721437.2397,
        110.27648114878684,
        0.41363802126585414,
    ),
    ("add_1", 1475000721548.927, 280.99281867221, 0.0),
    ("add_1", 1475000721548.927, 280.99281867221, 0.0),
    ("relu_6", 1475000721831.1514, 178.97666068188846, 0.0),
    ("mean", 1475000731307.9893, 2.064631956629455, 0.0),
    (
        "view-VirtualReshape-Output-LxRelayout",
        1475000731311.2715,
        0.47037702053785324,
        0.0,
    ),
    (
        "addmm_MatMul",
        1475000731313.6165,
        66.8725314186886,
        0.027841299593720285,
    ),
];

/// The rows of sample_comp_log_ideal.txt.
const SAMPLE_LOG: &str = "\
~~~~ Ideal/Total Cycles ~~~~
convolution-opCatConvOs1_fp16                     115248
max_pool2d_with_indices-opCatPooling              0
convolution_1-opCatConv_fp16                      12544
convolution_4-opCatConv_fp16                      50176
convolution_2-opCatConv_fp16                      112896
convolution_3-opCatConv_fp16                      50176
add-opCatBroadcast                                0
relu_3-opCatScalar                                0
convolution_5-opCatConv_fp16                      50176
convolution_6-opCatConv_fp16                      112896
convolution_7-opCatConv_fp16                      50176
add_1-opCatBroadcast                              0
relu_6-opCatScalar                                0
convolution_15-Output-Form1-LxRelayout-opCatStcdpLx   0
mean-opCatPooling                                 0
view-VirtualReshape-Output-LxRelayout-opCatStcdpLx    0
addmm_MatMul-opCatBmm_fp16                        2048
Total\t\t\t\t\t\t\t\t\t\t556336
====== Perf Summary End ======
";

fn info(logs: &[&str]) -> CompilerInfo {
    let mut messages = Messages::new(Level::Error);
    let mut read = |log: &&str| compiler_log::read(&mut log.as_bytes(), &mut messages).unwrap();
    CompilerInfo {
        logs: logs.iter().map(&mut read).collect(),
    }
}

fn call(name: &str, start_us: f64, dur_us: f64) -> KernelCall<'_> {
    KernelCall {
        rank: 0,
        job: 7,
        label: 7,
        correlation: None,
        part: 0,
        name,
        fn_idx: None,
        start_us,
        dur_us,
    }
}

struct Run {
    calls: Vec<(f64, f64, String)>,
    counters: Vec<CounterPoint>,
    results: UtilizationResults,
    warnings: Vec<String>,
}

fn run(info: &CompilerInfo, core_mhz: f64, calls: &[KernelCall<'_>]) -> Run {
    let mut messages = Messages::new(Level::Warn);
    let mut fingerprints = Fingerprints::new(info, core_mhz);
    calls.iter().for_each(|call| fingerprints.add(call));
    let mut utilization = fingerprints.matched(&mut messages);
    let mut found = Vec::new();
    let mut counters = Vec::new();
    for call in calls {
        let one = utilization.call(call, &mut messages);
        counters.extend(utilization.counter(call, &one).into_iter().flatten());
        found.push((one.ideal_us, one.utilization, one.category.to_owned()));
    }
    let results = utilization.finish(&mut messages);
    let warnings = messages.iter().map(|m| m.text.clone()).collect();
    Run {
        calls: found,
        counters,
        results,
        warnings,
    }
}

#[test]
fn the_sample_has_acelyzer_s_utilization_and_tables() {
    let info = info(&[SAMPLE_LOG]);
    let names: Vec<_> = SAMPLE
        .iter()
        .map(|c| format!("{} Cmpt Exec", c.0))
        .collect();
    let calls = names.iter().zip(SAMPLE);
    let calls: Vec<_> = calls.map(|(n, c)| call(n, c.1, c.2)).collect();
    let run = run(&info, 1100.0, &calls);
    for ((_, utilization, _), expected) in run.calls.iter().zip(SAMPLE) {
        assert_eq!(*utilization, expected.3, "{}", expected.0);
    }
    assert_eq!(run.warnings, [""; 0]);
    let rows = &run.results.categories[0];
    let (mut csv, mut text) = (Vec::new(), Vec::new());
    write_csv(rows, &mut csv).unwrap();
    write_text(rows, &mut text).unwrap();
    // The files of acelyzer 1.3.0.
    assert_eq!(
        String::from_utf8(csv).unwrap(),
        "Pid,Phase,Category,Kernel_Time,Frac_Time,Calls,Ideal_Time,Ideal_Cyc,Frac_Ideal,PT_Util
0,UNKN,StcdpHbm,0.0,0.0,0,0.0,0,0.0,0.0
0,UNKN,other,0.0,0.0,0,0.0,0,0.0,0.0
0,UNKN,StcdpLx,0.47037702053785324,0.0002,1,0.0,0,0.0,0.0
0,UNKN,Bmm_fp16,66.8725314186886,0.0247,1,1.8618,2048,0.0037,0.0278
0,UNKN,Pooling,193.732495511882,0.0717,2,0.0,0,0.0,0.0
0,UNKN,ConvOs1_fp16,353.5763016156852,0.1308,1,104.7709,115248,0.2072,0.2963
0,UNKN,Scalar,355.1095152599737,0.1314,2,0.0,0,0.0,0.0
0,UNKN,Broadcast,843.0520646329969,0.3119,3,0.0,0,0.0,0.0
0,UNKN,Conv_fp16,889.7935368027538,0.3292,7,399.1273,439040,0.7892,0.4486
0,UNKN,Total,2702.606822262518,1.0,17,505.76,556336,1.0,0.1871
"
    );
    assert_eq!(
        String::from_utf8(text).unwrap(),
        " Pid Phase     Category  Kernel_Time  Frac_Time  Calls  Ideal_Time  Ideal_Cyc  Frac_Ideal  PT_Util
   0  UNKN     StcdpHbm     0.000000     0.0000      0      0.0000          0      0.0000   0.0000
   0  UNKN        other     0.000000     0.0000      0      0.0000          0      0.0000   0.0000
   0  UNKN      StcdpLx     0.470377     0.0002      1      0.0000          0      0.0000   0.0000
   0  UNKN     Bmm_fp16    66.872531     0.0247      1      1.8618       2048      0.0037   0.0278
   0  UNKN      Pooling   193.732496     0.0717      2      0.0000          0      0.0000   0.0000
   0  UNKN ConvOs1_fp16   353.576302     0.1308      1    104.7709     115248      0.2072   0.2963
   0  UNKN       Scalar   355.109515     0.1314      2      0.0000          0      0.0000   0.0000
   0  UNKN    Broadcast   843.052065     0.3119      3      0.0000          0      0.0000   0.0000
   0  UNKN    Conv_fp16   889.793537     0.3292      7    399.1273     439040      0.7892   0.4486
   0  UNKN        Total  2702.606822     1.0000     17    505.7600     556336      1.0000   0.1871
"
    );
    // Its line: avg_mm_util=38.6, t_mm=1310.2423698371276, t_sf=1392.3644524253905.
    let sum = run.results.sums[&0];
    assert!((sum.mean_percent - 38.6).abs() < 0.0005, "{sum:?}");
    assert_eq!(sum.matmul_us, 1310.2423698371276);
    assert_eq!(sum.other_us, 1392.3644524253905);
    // Its first counter values.
    let point = |ts_us, percent| CounterPoint {
        rank: 0,
        ts_us,
        percent,
    };
    assert_eq!(
        run.counters[..2],
        [
            point(1475000719617.1995, 29.631767913220706),
            point(1475000719970.776, 0.0)
        ]
    );
    assert_eq!(run.counters.len(), 18);
}

const TABLE: &str = " Ideal/Total Cycles \n";
const END: &str = "====== Perf Summary End ======\n";

#[test]
fn a_kernel_faster_than_ideal_is_told_and_has_no_ideal_time() {
    let info = info(&[&format!("{TABLE}a-opCatX 100\nb-opCatX 50\n{END}")]);
    // At 100 MHz: a 1 us, b 0.5 us.
    let run = run(&info, 100.0, &[call("a", 0.0, 0.5), call("b", 1.0, 4.0)]);
    assert_eq!(run.calls[0], (1.0, 2.0, "X".to_owned()));
    assert_eq!(run.calls[1], (0.5, 0.125, "X".to_owned()));
    assert_eq!(run.counters[0].percent, 101.0);
    let x = run.results.categories[0]
        .iter()
        .find(|r| r.category == "X")
        .unwrap();
    assert_eq!((x.calls, x.ideal_cycles, x.ideal_us), (2, 50, 0.5));
    let last = run.warnings.last().unwrap();
    assert_eq!(last, "UTL: Encountered 1 Events with >100% utilization");
    // Sums take what is shown: 101 % for 0.5 us and 12.5 % for 4 us.
    let mean = (101.0 * 0.5 + 12.5 * 4.0) / 4.5;
    assert!((run.results.sums[&0].mean_percent - mean).abs() < 1e-9);
}

#[test]
fn the_table_that_is_most_like_a_job_is_its_table() {
    let log = format!(
        "  PREFILL \n{TABLE}a-opCatX 100\nb-opCatX 100\nc-opCatX 100\n{END}\
         \u{20} DECODING \n{TABLE}a-opCatX 10\nb-opCatX 10\n{END}"
    );
    let info = info(&[&log]);
    // At 1 MHz, prefill: 3 of 3 rows, 300 of 400 us: 0.5 + 0.5 + 0.375. Decoding: more
    // calls than rows. The other job: 2 of 2 rows, 20 of 25 us; prefill takes longer.
    let mut calls = ["a", "b", "c"].map(|n| call(n, 0.0, 400.0 / 3.0)).to_vec();
    let second = ["a", "b"].map(|n| KernelCall {
        job: 8,
        ..call(n, 500.0, 12.5)
    });
    calls.extend(second);
    let run = run(&info, 1.0, &calls);
    let ideal: Vec<_> = run.calls.iter().map(|c| c.0).collect();
    assert_eq!(ideal, [100.0, 100.0, 100.0, 10.0, 10.0]);
    let phases: Vec<_> = run.results.categories[0].iter().map(|r| r.phase).collect();
    assert_eq!(phases, [["ITL"; 4], ["TTFT"; 4]].concat());
    assert_eq!(
        run.warnings,
        [
            "UTL: 2/2 unique tables with ideal cycles have been detected. Utilization results \
          should be inspected carefully!!!!"
        ]
    );
}

#[test]
fn uncertain_matches_are_named() {
    let log =
        format!("{TABLE}a-opCatX 10\nb-opCatX 10\n{END}{TABLE}a-opCatX 9\nb-opCatX 10\n{END}");
    let two = info(&[&log]);
    // 2 of 2 rows in order, 20 of 20 us: 1.5; the other table 1.475.
    let close = run(&two, 1.0, &[call("a", 0.0, 10.0), call("b", 10.0, 10.0)]);
    assert!(
        close.warnings.contains(
            &"UTL: Detected uncertain Ideal Cycles table match for 1 jobs: {'7:mm=2'}".to_owned()
        ),
        "{:?}",
        close.warnings
    );
    assert_eq!(close.calls[0].0, 10.0);
    let one = info(&[&format!("{TABLE}a-opCatX 10\nb-opCatX 10\n{END}")]);
    // 1 of 2 rows, not in the table, 20 of 200 us: 0.25 + 0.25 + 0.05 = 0.55.
    let far = KernelCall {
        correlation: Some(3),
        ..call("z", 0.0, 200.0)
    };
    let far = run(&one, 1.0, &[far]);
    assert_eq!(
        far.warnings,
        [
            "UTL: Detected uncertain Ideal Cycles table match for 1 jobs: {'10:0.55'}",
            "UTL: Found 1 Events without a matching kernel category and accounted for 'other'",
        ]
    );
    assert_eq!(far.calls[0], (0.0, 0.0, "other".to_owned()));
    // More calls than rows.
    let many = run(&one, 1.0, &[call("a", 0.0, 99.0); 3]);
    assert!(
        many.warnings[0].ends_with("{'7:0.0'}"),
        "{:?}",
        many.warnings
    );
}

#[test]
fn each_rank_has_its_own_log() {
    let log = |cycles| format!("{TABLE}a-opCatX {cycles}\n{END}");
    let info = info(&[&log(10), &log(20)]);
    let calls = [0, 1, 2, -1].map(|rank| KernelCall {
        rank,
        ..call("a", 0.0, 40.0)
    });
    let run = run(&info, 1.0, &calls);
    let ideal: Vec<_> = run.calls.iter().map(|c| c.0).collect();
    assert_eq!(ideal, [10.0, 20.0, 0.0, 0.0]);
    let tables = run.results.categories.iter();
    let ranks: Vec<_> = tables.map(|rows| rows[0].rank).collect();
    assert_eq!(ranks, [0, 1]);
    assert!(
        run.warnings.contains(
            &"UTL: No matching Ideal Cycles table found for 2 Events. This might indicate a wrong \
              frequency setting."
                .to_owned()
        ),
        "{:?}",
        run.warnings
    );
}

#[test]
fn a_number_stands_for_n_and_names_need_no_suffix() {
    let info = info(&[&format!("{TABLE}k_3-opCatX 10\n{END}")]);
    let indexed = |name| KernelCall {
        fn_idx: Some("3"),
        ..call(name, 0.0, 40.0)
    };
    let run = run(&info, 1.0, &[indexed("k_[N]"), indexed("k_[N] Cmpt Exec")]);
    assert!(run.calls.iter().all(|c| c.0 == 10.0), "{:?}", run.calls);
}

#[test]
fn with_autopilot_jobs_are_compared_with_the_sum() {
    let log = format!("DSM-AutoPilot BEGIN\n{TABLE}a-opCatX 30\nb-opCatX 30\nTotal 60\n{END}");
    let info = info(&[&log]);
    let job = |job, start, dur| KernelCall {
        job,
        ..call("fused", start, dur)
    };
    // Job 1: 60 of 100 + 100 us. Job 2 starts before its end. Job 3 later.
    let calls = [
        job(1, 0.0, 100.0),
        job(1, 200.0, 100.0),
        job(2, 280.0, 120.0),
        job(3, 1000.0, 240.0),
    ];
    let run = run(&info, 1.0, &calls);
    let point = |ts_us, percent| CounterPoint {
        rank: 0,
        ts_us,
        percent,
    };
    assert_eq!(
        run.results.counters,
        [
            point(0.0, 30.0),
            point(300.0, 50.0),
            point(400.0, 0.0),
            point(1000.0, 25.0),
            point(1240.0, 0.0),
        ]
    );
    assert!(run.counters.is_empty() && run.results.sums.is_empty());
    let rows = &run.results.categories[0];
    assert_eq!(run.warnings, [""; 0]);
    // acelyzer counts Total twice here (specification, defect 11).
    let total: Vec<_> = rows.iter().filter(|r| r.category == "Total").collect();
    assert_eq!(total.len(), 1);
    assert_eq!((total[0].time_us, total[0].calls), (560.0, 4));
    assert_eq!(run.calls[0].2, "Total");
}

#[test]
fn a_job_inside_of_another_is_told() {
    let log = format!("DSM-AutoPilot BEGIN\n{TABLE}a-opCatX 10\n{END}");
    let info = info(&[&log]);
    let outer = KernelCall {
        job: 1,
        ..call("k", 0.0, 100.0)
    };
    let inner = KernelCall {
        job: 2,
        ..call("k", 50.0, 20.0)
    };
    let run = run(&info, 1.0, &[outer, inner]);
    // The outer job: 10 us ideal in 100; the inner one, in 20, is left out.
    let percents: Vec<_> = run.results.counters.iter().map(|c| c.percent).collect();
    assert_eq!(percents, [10.0, 0.0]);
    let told = run
        .warnings
        .iter()
        .any(|w| w.starts_with("UTL: Counter embedding detected."));
    assert!(told, "{:?}", run.warnings);
}

#[test]
fn a_job_faster_than_its_sum_is_told() {
    let log = format!("DSM-AutoPilot BEGIN\n{TABLE}a-opCatX 10\n{END}");
    let run = run(&info(&[&log]), 1.0, &[call("k", 0.0, 4.0)]);
    assert_eq!(run.results.counters[0].percent, 101.0);
    let told = "UTL: Encountered 1 Events with >100% utilization";
    assert!(run.warnings.iter().any(|text| text == told));
}

#[test]
fn no_log_and_times_that_are_no_numbers_do_no_harm() {
    let none = CompilerInfo::default();
    let nothing = run(&none, 1100.0, &[call("a", 0.0, 1.0)]);
    assert_eq!(nothing.calls[0], (0.0, 0.0, "other".to_owned()));
    assert!(nothing.results.categories.is_empty());
    let info = info(&[&format!("{TABLE}a-opCatX 10\n{END}")]);
    let odd = [f64::NAN, 0.0, -1.0, f64::INFINITY].map(|dur| call("a", f64::NAN, dur));
    let odd = run(&info, 1.0, &odd);
    assert_eq!(odd.calls[0].1, 0.0);
    assert_eq!(odd.calls[1].1, 0.0);
    assert_eq!(info.logs[0].tables()[0].phase, Phase::Unknown);
}
