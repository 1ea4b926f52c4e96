use super::*;
use crate::cli::compat::acelyzer::settings;
use aiprof_trace::analyze::messages::Level;

fn settings(line: &str) -> AcelyzerSettings {
    let words: Vec<_> = line.split(' ').map(str::to_owned).collect();
    settings::parse(&words).unwrap().settings
}

fn enabled(text: &str) -> Vec<AcelyzerStage> {
    let profile = parse(text).unwrap();
    AcelyzerStage::analysis()
        .filter(|s| profile.contains(s))
        .collect()
}

fn refused(text: &str) -> String {
    parse(text).unwrap_err()
}

#[test]
fn the_order_is_that_of_the_specification() {
    let names: Vec<_> = AcelyzerStage::analysis().map(AcelyzerStage::name).collect();
    assert_eq!(names.len(), 57);
    let nth = |name: &str| -> Vec<usize> {
        let numbered = names.iter().enumerate();
        numbered
            .filter(|(_, n)| **n == name)
            .map(|(i, _)| i)
            .collect()
    };
    // Four sorts and four barriers, at the places of acelyzer's everything.json.
    assert_eq!(nth("sort_events"), [18, 26, 37, 56]);
    assert_eq!(nth("pipeline_barrier"), [4, 21, 34, 41]);
    assert_eq!(nth("assert_ts_sequence"), [19, 23, 32]);
    assert_eq!(nth("calculate_stats"), [48]);
    assert_eq!(nth("tb_refinement_lightweight"), [53]);
    assert_eq!(AcelyzerStage::verification().count(), 6);
}

#[test]
fn an_empty_profile_is_everything() {
    assert_eq!(enabled("{}").len(), 57);
    assert_eq!(enabled("[]").len(), 57);
    assert_eq!(enabled(r#"{"stages":[]}"#), []);
}

#[test]
fn an_unqualified_repeated_name_means_all_its_occurrences() {
    let text = r#"{"stages":[{"normalize_phase1":true},{"sort_events":true}]}"#;
    assert_eq!(
        enabled(text),
        [
            AcelyzerStage::NormalizePhase1,
            AcelyzerStage::SortPerThread,
            AcelyzerStage::SortPower,
            AcelyzerStage::SortGlobal,
            AcelyzerStage::SortFinal,
        ]
    );
}

#[test]
fn a_number_chooses_one_occurrence() {
    let text = r#"{"stages":[{"sort_events":true},{"sort_events#2":false},
                             {"compute_power":1},{"pipeline_barrier#3":true}]}"#;
    assert_eq!(
        enabled(text),
        [
            AcelyzerStage::SortPerThread,
            AcelyzerStage::ComputePower,
            AcelyzerStage::BarrierUtilization,
            AcelyzerStage::SortGlobal,
            AcelyzerStage::SortFinal,
        ]
    );
}

#[test]
fn a_list_of_every_occurrence_is_positional() {
    let text = r#"{"stages":[{"sort_events":false},{"sort_events":true},
                             {"sort_events":false},{"sort_events#4":true}]}"#;
    assert_eq!(
        enabled(text),
        [AcelyzerStage::SortPower, AcelyzerStage::SortFinal]
    );
}

#[test]
fn unknown_and_misplaced_stages_are_refused() {
    let misplaced = |name: &str| format!("Profile references unknown or misplaced stage '{name}'.");
    assert_eq!(refused(r#"{"stages":[{"nix":true}]}"#), misplaced("nix"));
    assert_eq!(
        refused(r#"{"stages":[{"compute_power":true},{"normalize_phase1":true}]}"#),
        misplaced("normalize_phase1")
    );
    assert_eq!(
        refused(r#"{"stages":[{"sort_events#5":true}]}"#),
        misplaced("sort_events#5")
    );
    assert_eq!(
        refused(r#"{"stages":[{"normalize_phase1#1":true}]}"#),
        misplaced("normalize_phase1#1")
    );
}

#[test]
fn what_is_no_profile_is_refused() {
    assert_eq!(refused(r#"{"stage":[]}"#), NO_STAGES);
    assert_eq!(refused(r#"{"stages":{"a":true}}"#), NO_STAGES);
    assert_eq!(refused("5"), NO_STAGES);
    for entry in ["{}", r#"{"a":true,"b":true}"#, "7"] {
        assert_eq!(
            refused(&format!(r#"{{"stages":[{entry}]}}"#)),
            NO_ENTRY,
            "{entry}"
        );
    }
    assert!(refused("{").starts_with("not JSON: "));
}

#[test]
fn built_in_profiles_are_known_by_name() {
    let torch = built_in("torch_minimal.json").unwrap();
    // Specification: off are 1, 2, 4-6, 9-17, 19 and 25, where 14 is two stages.
    let off = AcelyzerStage::analysis()
        .filter(|s| !torch.contains(s))
        .count();
    assert_eq!(off, 17);
    assert!(torch.contains(&AcelyzerStage::NormalizePhase2));
    assert!(!torch.contains(&AcelyzerStage::CycleCountToWallclock));
    assert!(
        built_in("everything")
            .unwrap()
            .contains(&AcelyzerStage::SortFinal)
    );
    assert!(
        built_in("verification")
            .unwrap()
            .contains(&AcelyzerStage::VerifyKernelParent)
    );
    assert_eq!(built_in("nix"), None);
}

#[test]
fn options_decide_what_a_profile_lets_run() {
    let torch = built_in("torch_minimal").unwrap();
    let mut messages = Messages::new(Level::Info);
    let settings = settings("-i x --tb --flow -C coll_bw prep_queue rcu_util");
    let set = register(&torch, &settings, &mut messages);
    assert!(set.contains(&AcelyzerStage::FlowExtraction));
    assert!(!set.contains(&AcelyzerStage::SortPower));
    assert!(!set.contains(&AcelyzerStage::ComputePower));
    let texts: Vec<_> = messages.iter().map(|m| m.text.as_str()).collect();
    // acelyzer 1.3.0 with `--tb --flow -C coll_bw prep_queue rcu_util`.
    assert_eq!(
        texts,
        [
            "drop_timestamp_reversed_events",
            "create_slice_from_BE",
            "pipeline_barrier",
            "map_tid_to_range",
            "cycle_count_to_wallclock",
            "tighten_hts_by_instr_type",
            "mp_sync_tight_v1",
            "queueing_counter",
            "recombine_cpu_events",
            "assert_ts_sequence",
        ]
        .map(|name| format!("DAH: Skipping registration of {name} : disabled in profile."))
    );
}

#[test]
fn verification_runs_its_own_stages_only() {
    let settings = settings("-i x -V");
    let profile = built_in("verification").unwrap();
    let set = register(&profile, &settings, &mut Messages::new(Level::Error));
    assert_eq!(set, AcelyzerStage::verification().collect());
}

#[test]
fn the_default_profile_runs_what_acelyzer_runs_by_default() {
    let profile = built_in("default").unwrap();
    let stages = register(
        &profile,
        &settings("-i x"),
        &mut Messages::new(Level::Error),
    );
    // Options off: no flows, no compiler log, no job shifts, one alignment.
    for off in [
        AcelyzerStage::FlowExtraction,
        AcelyzerStage::ComputeUtilization,
        AcelyzerStage::FrequencyAlignApply,
        AcelyzerStage::MpTsCalibrationV2,
        AcelyzerStage::ComputeBandwidth,
        AcelyzerStage::VerifySort,
    ] {
        assert!(!stages.contains(&off), "{off:?}");
    }
    for on in [
        AcelyzerStage::NormalizePhase1,
        AcelyzerStage::MpSyncTightV1,
        AcelyzerStage::ComputePower,
        AcelyzerStage::MpCalcBw,
        AcelyzerStage::SortFinal,
    ] {
        assert!(stages.contains(&on), "{on:?}");
    }
}
