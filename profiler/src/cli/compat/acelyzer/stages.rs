//! The stages of acelyzer 1.3.0, in its order, and the profiles that switch them.
//!
//! aiprof has no such stages. A profile selects which of their effects are wanted, and `convert`
//! makes a configuration of that. Names and order are those of acelyzer's profile
//! `everything.json`.

#[cfg(any(test, feature = "testing"))]
pub(crate) mod testing;

use super::settings::AcelyzerSettings;
use aiprof_trace::analyze::messages::Messages;
use aiprof_trace::analyze::pipeline::STEPS;
use serde_json::Value;
use std::collections::BTreeSet;

/// Defines [`AcelyzerStage`], its order and its names in one place.
macro_rules! stages {
    ($($variant:ident = $name:literal,)*) => {
        /// One occurrence of a stage. Where a name occurs several times, the variants are
        /// named by what happens there.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub(super) enum AcelyzerStage {
            $($variant,)*
        }

        impl AcelyzerStage {
            /// All occurrences: those of the analysis, then those of the verification.
            pub(super) const ALL: &'static [Self] = &[$(Self::$variant,)*];

            /// acelyzer's name, as profiles and messages have it.
            pub(super) fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)*
                }
            }
        }
    };
}

stages! {
    DropTimestampReversed = "drop_timestamp_reversed_events",
    CreateSliceFromBe = "create_slice_from_BE",
    NormalizePhase1 = "normalize_phase1",
    FrequencyAlignCollect = "frequency_align_collect",
    BarrierNormalize = "pipeline_barrier",
    FrequencyAlignApply = "frequency_align_apply",
    NormalizePhase2 = "normalize_phase2",
    EventSanityChecks = "event_sanity_checks",
    RemoveIdsFromName = "remove_ids_from_name",
    MapTidToRange = "map_tid_to_range",
    CycleCountToWallclock = "cycle_count_to_wallclock",
    TightenHtsByInstrType = "tighten_hts_by_instr_type",
    TriplePhasedEvents = "tripple_phased_events",
    MpSyncTightV1 = "mp_sync_tight_v1",
    MpTsCalibrationV2 = "mp_ts_calibration_v2",
    QueueingCounter = "queueing_counter",
    DropGlobalEvents = "drop_global_events",
    RecombineCpuEvents = "recombine_cpu_events",
    SortPerThread = "sort_events",
    AssertSequenceBeforeOverlap = "assert_ts_sequence",
    DetectPartialOverlapTids = "detect_partial_overlap_tids",
    BarrierOverlap = "pipeline_barrier",
    DetectPartialOverlapEvents = "detect_partial_overlap_events",
    AssertSequenceAfterOverlap = "assert_ts_sequence",
    CollectIterationStats = "collect_iteration_stats",
    ExtractPowerEvent = "extract_power_event",
    SortPower = "sort_events",
    ComputePower = "compute_power",
    AnalyzePowerStatistics = "analyze_power_statistics",
    ExtractDataTransferEvent = "extract_data_transfer_event",
    ComputeBandwidth = "compute_bandwidth",
    UtilizationFingerprints = "compute_utilization_fingerprints",
    AssertSequenceAfterCounters = "assert_ts_sequence",
    CommunicationCollection = "communication_event_collection",
    BarrierUtilization = "pipeline_barrier",
    CommunicationApply = "communication_event_apply",
    ComputeUtilization = "compute_utilization",
    SortGlobal = "sort_events",
    AssertGlobalSequence = "assert_global_ts_sequence",
    LaunchFlowCollect = "launch_flow_collect",
    EventCategorizer = "event_categorizer",
    BarrierCategorizer = "pipeline_barrier",
    EventCategorizerUpdate = "event_categorizer_update",
    LaunchFlowCreateMissing = "launch_flow_create_missing",
    FlowPrepareEventData = "flow_prepare_event_data",
    FlowExtraction = "flow_extraction",
    MpCalcBwV2 = "mp_calc_bw_v2",
    MpCalcBw = "mp_calc_bw",
    CalculateStats = "calculate_stats",
    ProcessingFilter = "processing_filter",
    FlowDataCleanup = "flow_data_cleanup",
    CleanupCopyOfDeviceTs = "cleanup_copy_of_device_ts",
    TbRefinementIntrusive = "tb_refinement_intrusive",
    TbRefinementLightweight = "tb_refinement_lightweight",
    CycleCountConversionCleanup = "cycle_count_conversion_cleanup",
    CalculateStatsV2 = "calculate_stats_v2",
    SortFinal = "sort_events",
    VerifySort = "sort_events",
    VerifyKernelOverlap = "verify_kernel_overlap",
    VerifyKernelParentCollect = "kernel_parent_collect",
    VerifyBarrier = "pipeline_barrier",
    VerifyKernelParent = "kernel_parent_verify",
    VerificationResultFilter = "verification_result_filter",
}

impl AcelyzerStage {
    /// Stages of the analysis (profile `everything`).
    fn analysis() -> impl Iterator<Item = Self> {
        Self::ALL.iter().copied().filter(|s| !s.is_verification())
    }

    /// Stages of the verification mode (profile `verification`).
    fn verification() -> impl Iterator<Item = Self> {
        Self::ALL.iter().copied().filter(|s| s.is_verification())
    }

    /// How many of aiprof's steps have been made when its effect is there.
    pub(super) fn steps(self) -> usize {
        const LAST: [AcelyzerStage; STEPS] = [
            AcelyzerStage::NormalizePhase1,
            AcelyzerStage::TriplePhasedEvents,
            AcelyzerStage::MpTsCalibrationV2,
            AcelyzerStage::AssertSequenceBeforeOverlap,
            AcelyzerStage::AssertSequenceAfterOverlap,
            AcelyzerStage::ComputeBandwidth,
            AcelyzerStage::ComputeUtilization,
            AcelyzerStage::MpCalcBw,
            AcelyzerStage::CalculateStats,
            AcelyzerStage::VerificationResultFilter,
        ];
        1 + LAST.partition_point(|last| *last < self)
    }

    /// Whether it belongs to the verification mode.
    fn is_verification(self) -> bool {
        self >= Self::VerifySort
    }

    /// Whether the options ask for it, whatever the profile selects: acelyzer registers a
    /// stage only then.
    fn is_asked_for(self, settings: &AcelyzerSettings) -> bool {
        let counts = |counter| settings.counter.has(counter);
        let has_power = counts("power_ts4") || counts("power_ts3");
        let (stats, spans) = (settings.stats, settings.build_coll_event);
        match self {
            stage if stage.is_verification() => settings.verification_mode,
            _ if settings.verification_mode => false,
            Self::FrequencyAlignCollect | Self::FrequencyAlignApply => settings.flex_ts_fix,
            Self::RemoveIdsFromName => settings.overlap == "async",
            Self::TriplePhasedEvents => settings.split_events,
            Self::MpSyncTightV1 => !settings.skip_mpsync && !settings.mp_sync_v2,
            Self::MpTsCalibrationV2 => !settings.skip_mpsync && settings.mp_sync_v2,
            Self::QueueingCounter => counts("prep_queue"),
            Self::DropGlobalEvents => settings.drop_globals,
            Self::DetectPartialOverlapTids | Self::BarrierOverlap => settings.overlap == "tid",
            Self::ExtractPowerEvent | Self::SortPower | Self::ComputePower => has_power,
            Self::AnalyzePowerStatistics => has_power && settings.power_stats,
            Self::ExtractDataTransferEvent | Self::ComputeBandwidth => counts("bandwidth"),
            Self::UtilizationFingerprints | Self::ComputeUtilization => {
                counts("rcu_util") && settings.compiler_info.is_some()
            }
            Self::CommunicationCollection | Self::CommunicationApply => settings.comm_summarize_seq,
            Self::FlowPrepareEventData | Self::FlowExtraction => settings.flow,
            Self::MpCalcBwV2 => counts("coll_bw") && spans,
            Self::MpCalcBw => counts("coll_bw") && !spans,
            Self::CalculateStats => stats,
            Self::ProcessingFilter => !settings.filter.is_empty(),
            Self::TbRefinementIntrusive => settings.tb_refinement,
            Self::CalculateStatsV2 => stats && spans,
            _ => true,
        }
    }
}

/// A set of stage occurrences.
pub(super) type StageSet = BTreeSet<AcelyzerStage>;

/// The text has no list of stages.
const NO_STAGES: &str = "Profile data is missing 'stages' key.";
/// An entry of the list is not an object of one stage.
const NO_ENTRY: &str = "Each stage entry must contain exactly one stage key.";

/// Stages that acelyzer's `torch_minimal` switches off: host times of a torch trace
/// are final, so nothing is converted, moved to other tids or aligned.
const NOT_IN_TORCH_MINIMAL: &[AcelyzerStage] = &[
    AcelyzerStage::DropTimestampReversed,
    AcelyzerStage::CreateSliceFromBe,
    AcelyzerStage::FrequencyAlignCollect,
    AcelyzerStage::BarrierNormalize,
    AcelyzerStage::FrequencyAlignApply,
    AcelyzerStage::RemoveIdsFromName,
    AcelyzerStage::MapTidToRange,
    AcelyzerStage::CycleCountToWallclock,
    AcelyzerStage::TightenHtsByInstrType,
    AcelyzerStage::TriplePhasedEvents,
    AcelyzerStage::MpSyncTightV1,
    AcelyzerStage::MpTsCalibrationV2,
    AcelyzerStage::QueueingCounter,
    AcelyzerStage::DropGlobalEvents,
    AcelyzerStage::RecombineCpuEvents,
    AcelyzerStage::AssertSequenceBeforeOverlap,
    AcelyzerStage::AnalyzePowerStatistics,
];

/// A stage as a profile names it.
struct StageRequest {
    raw: String,
    name: String,
    index: Option<usize>,
    enabled: bool,
}

/// A profile that is built in: `default`, `everything`, `torch_minimal` or
/// `verification`, with or without `.json`.
pub(super) fn built_in(name: &str) -> Option<StageSet> {
    Some(match name.strip_suffix(".json").unwrap_or(name) {
        "default" | "everything" => AcelyzerStage::analysis().collect(),
        "torch_minimal" => AcelyzerStage::analysis()
            .filter(|stage| !NOT_IN_TORCH_MINIMAL.contains(stage))
            .collect(),
        "verification" => AcelyzerStage::verification().collect(),
        _ => return None,
    })
}

/// Reads a profile, `{"stages":[{"name":bool},…]}`; an empty object means all.
///
/// Where every repeated name is either absent or listed as often as it occurs,
/// the list is positional. Otherwise a repeated name means all its occurrences,
/// and `name#2` the second. What is not listed is off.
///
/// # Errors
/// acelyzer's message.
pub(super) fn parse(text: &str) -> Result<StageSet, String> {
    let data: Value = serde_json::from_str(text).map_err(|e| format!("not JSON: {e}"))?;
    let is_empty = match &data {
        Value::Object(map) => map.is_empty(),
        Value::Array(list) => list.is_empty(),
        _ => false,
    };
    if is_empty {
        return Ok(AcelyzerStage::analysis().collect());
    }
    let Some(Value::Array(list)) = data.get("stages") else {
        return Err(NO_STAGES.to_owned());
    };
    let requests: Result<Vec<_>, _> = list.iter().map(StageRequest::parse).collect();
    resolve(requests?)
}

/// The occurrences of a profile that run with these options, with acelyzer's lines about those
/// that would and do not.
pub(super) fn register(
    profile: &StageSet,
    settings: &AcelyzerSettings,
    messages: &mut Messages,
) -> StageSet {
    let mut set = StageSet::default();
    let asked_for = |stage: &&AcelyzerStage| stage.is_asked_for(settings);
    for stage in AcelyzerStage::ALL.iter().filter(asked_for) {
        let name = stage.name();
        if profile.contains(stage) {
            // Two blanks, as acelyzer prints them.
            messages.debug("DAH", format_args!("DAH: registering:  {name}"));
            set.insert(*stage);
        } else {
            messages.info(
                "DAH",
                format_args!("DAH: Skipping registration of {name} : disabled in profile."),
            );
        }
    }
    set
}

impl StageRequest {
    fn parse(entry: &Value) -> Result<Self, String> {
        let map = entry.as_object().ok_or(NO_ENTRY)?;
        let mut keys = map.iter();
        let (Some((raw, value)), None) = (keys.next(), keys.next()) else {
            return Err(NO_ENTRY.to_owned());
        };
        let (name, index) = match raw.rsplit_once('#') {
            Some((name, digits)) if digits.bytes().all(|b| b.is_ascii_digit()) => {
                match digits.parse() {
                    Ok(index) => (name, Some(index)),
                    Err(_) => (raw.as_str(), None),
                }
            }
            _ => (raw.as_str(), None),
        };
        Ok(Self {
            raw: raw.clone(),
            name: name.to_owned(),
            index,
            enabled: is_true(value),
        })
    }

    /// Whether it means this occurrence, the `index`-th of `count` of its name.
    fn means(&self, stage: AcelyzerStage, index: usize, count: usize, positional: bool) -> bool {
        if self.name != stage.name() {
            return false;
        }
        match self.index {
            None => true,
            // Where a list is positional, acelyzer knows no number for a single name.
            Some(wanted) => wanted == index && !(positional && count == 1),
        }
    }
}

/// What Python's `bool()` makes of a JSON value.
fn is_true(value: &Value) -> bool {
    match value {
        Value::Null => false,
        Value::Bool(flag) => *flag,
        Value::Number(number) => number.as_f64() != Some(0.0),
        Value::String(text) => !text.is_empty(),
        Value::Array(list) => !list.is_empty(),
        Value::Object(map) => !map.is_empty(),
    }
}

fn occurrences(name: &str) -> usize {
    AcelyzerStage::analysis()
        .filter(|s| s.name() == name)
        .count()
}

/// Matches a profile's list against the stages of the analysis, forward only.
fn resolve(requests: Vec<StageRequest>) -> Result<StageSet, String> {
    let listed = |name: &str| requests.iter().filter(|r| r.name == name).count();
    let positional = AcelyzerStage::analysis().all(|stage| {
        let (count, asked) = (occurrences(stage.name()), listed(stage.name()));
        count == 1 || asked == 0 || asked == count
    });
    let is_recurring =
        |r: &StageRequest| !positional && r.index.is_none() && occurrences(&r.name) > 1;
    let (recurring, ordered): (Vec<_>, Vec<_>) = requests.into_iter().partition(is_recurring);
    let mut set = StageSet::default();
    let mut next = ordered.iter().peekable();
    for stage in AcelyzerStage::analysis() {
        let name = stage.name();
        let index = 1 + AcelyzerStage::analysis()
            .take_while(|earlier| *earlier != stage)
            .filter(|earlier| earlier.name() == name)
            .count();
        let every = recurring.iter().rev().find(|r| r.name == name);
        let mut enabled = every.is_some_and(|r| r.enabled);
        if let Some(request) =
            next.next_if(|r| r.means(stage, index, occurrences(name), positional))
        {
            enabled = request.enabled;
        }
        if enabled {
            set.insert(stage);
        }
    }
    match next.next() {
        Some(left) => Err(format!(
            "Profile references unknown or misplaced stage '{}'.",
            left.raw
        )),
        None => Ok(set),
    }
}

#[cfg(test)]
#[path = "stages_tests.rs"]
mod tests;
