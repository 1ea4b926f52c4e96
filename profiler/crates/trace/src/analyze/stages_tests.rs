use super::*;
use crate::analyze::config::Counters;
use crate::analyze::messages::Level;

fn enabled(text: &str) -> Vec<Stage> {
    let profile = Profile::parse(text).unwrap();
    Stage::analysis().filter(|s| profile.allows(*s)).collect()
}

fn refused(text: &str) -> ProfileError {
    Profile::parse(text).unwrap_err()
}

#[test]
fn the_order_is_that_of_the_specification() {
    let names: Vec<_> = Stage::analysis().map(Stage::name).collect();
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
    assert_eq!(Stage::verification().count(), 6);
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
            Stage::NormalizePhase1,
            Stage::SortPerThread,
            Stage::SortPower,
            Stage::SortGlobal,
            Stage::SortFinal,
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
            Stage::SortPerThread,
            Stage::ComputePower,
            Stage::BarrierUtilization,
            Stage::SortGlobal,
            Stage::SortFinal,
        ]
    );
}

#[test]
fn a_list_of_every_occurrence_is_positional() {
    let text = r#"{"stages":[{"sort_events":false},{"sort_events":true},
                             {"sort_events":false},{"sort_events#4":true}]}"#;
    assert_eq!(enabled(text), [Stage::SortPower, Stage::SortFinal]);
}

#[test]
fn unknown_and_misplaced_stages_are_refused() {
    let misplaced = |name: &str| ProfileError::Misplaced(name.to_owned());
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
    assert_eq!(refused(r#"{"stage":[]}"#), ProfileError::NoStages);
    assert_eq!(refused(r#"{"stages":{"a":true}}"#), ProfileError::NoStages);
    assert_eq!(refused("5"), ProfileError::NoStages);
    for entry in ["{}", r#"{"a":true,"b":true}"#, "7"] {
        assert_eq!(
            refused(&format!(r#"{{"stages":[{entry}]}}"#)),
            ProfileError::Entry,
            "{entry}"
        );
    }
    assert!(matches!(refused("{"), ProfileError::Syntax(_)));
}

#[test]
fn built_in_profiles_are_known_by_name() {
    let torch = Profile::builtin("torch_minimal.json").unwrap();
    // Specification: off are 1, 2, 4-6, 9-17, 19 and 25, where 14 is two stages.
    let off = Stage::analysis().filter(|s| !torch.allows(*s)).count();
    assert_eq!(off, 17);
    assert!(torch.allows(Stage::NormalizePhase2));
    assert!(!torch.allows(Stage::CycleCountToWallclock));
    assert!(
        Profile::builtin("everything")
            .unwrap()
            .allows(Stage::SortFinal)
    );
    assert!(
        Profile::builtin("verification")
            .unwrap()
            .allows(Stage::VerifyKernelParent)
    );
    assert_eq!(Profile::builtin("nix"), None);
}

#[test]
fn options_decide_what_a_profile_lets_run() {
    let torch = Profile::builtin("torch_minimal").unwrap();
    let mut messages = Messages::new(Level::Info);
    let config = Config {
        flow: true,
        counters: Counters {
            power: None,
            ..Counters::default()
        },
        ..Config::default()
    };
    let set = torch.register(&config, &mut messages);
    assert!(set.has(Stage::FlowExtraction));
    assert!(!set.has(Stage::SortPower) && !set.has(Stage::ComputePower));
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
    let config = Config {
        verify: true,
        ..Config::default()
    };
    let profile = Profile::builtin("verification").unwrap();
    let set = profile.register(&config, &mut Messages::new(Level::Error));
    assert_eq!(set, Stage::verification().collect());
}
