//! The stages of acelyzer 1.3.0, in its order, and the profiles that switch them.
//!
//! aiprof has no stages of its own; a profile selects which of their effects are wanted.
//! Names and order are those of acelyzer's profile `everything.json`.

#[cfg(any(test, feature = "testing"))]
pub mod testing;

use super::config::{Config, OverlapMode, RankAlignment};
use super::messages::Messages;
use serde_json::Value;

/// Defines [`Stage`], its order and its names in one place.
macro_rules! stages {
    ($($variant:ident = $name:literal,)*) => {
        /// One occurrence of a stage. Where a name occurs several times, the variants are
        /// named by what happens there.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(u8)]
        #[expect(missing_docs, reason = "the names are acelyzer's; see its profiles")]
        pub enum Stage {
            $($variant,)*
        }

        impl Stage {
            /// All occurrences: those of the analysis, then those of the verification.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];

            /// acelyzer's name, as profiles and messages have it.
            pub fn name(self) -> &'static str {
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

impl Stage {
    /// Stages of the analysis (profile `everything`).
    pub fn analysis() -> impl Iterator<Item = Self> {
        Self::ALL.iter().copied().filter(|s| !s.is_verification())
    }

    /// Stages of the verification mode (profile `verification`).
    pub(crate) fn verification() -> impl Iterator<Item = Self> {
        Self::ALL.iter().copied().filter(|s| s.is_verification())
    }

    /// Whether it belongs to the verification mode.
    fn is_verification(self) -> bool {
        self >= Self::VerifySort
    }

    /// Whether the options ask for it, whatever the profile selects: acelyzer registers a
    /// stage only then.
    fn is_asked_for(self, config: &Config) -> bool {
        let counters = &config.counters;
        let utilization = counters.rcu_util && !config.compiler_info.is_empty();
        match self {
            stage if stage.is_verification() => config.verify,
            _ if config.verify => false,
            Self::FrequencyAlignCollect | Self::FrequencyAlignApply => config.flex_ts_fix,
            Self::RemoveIdsFromName => config.overlap == OverlapMode::Async,
            Self::TriplePhasedEvents => config.split_events,
            Self::MpSyncTightV1 => config.rank_alignment == RankAlignment::Default,
            Self::MpTsCalibrationV2 => config.rank_alignment == RankAlignment::V2,
            Self::QueueingCounter => counters.prep_queue,
            Self::DropGlobalEvents => config.drop_globals,
            Self::DetectPartialOverlapTids | Self::BarrierOverlap => {
                config.overlap == OverlapMode::Tid
            }
            Self::ExtractPowerEvent | Self::SortPower | Self::ComputePower => {
                counters.power.is_some()
            }
            Self::AnalyzePowerStatistics => counters.power.is_some() && config.power_stats,
            Self::ExtractDataTransferEvent | Self::ComputeBandwidth => counters.bandwidth,
            Self::UtilizationFingerprints | Self::ComputeUtilization => utilization,
            Self::CommunicationCollection | Self::CommunicationApply => config.comm_summarize_seq,
            Self::FlowPrepareEventData | Self::FlowExtraction => config.flow,
            Self::MpCalcBwV2 => counters.coll_bw && config.build_coll_event,
            Self::MpCalcBw => counters.coll_bw && !config.build_coll_event,
            Self::CalculateStats => config.stats,
            Self::ProcessingFilter => !config.keep_phases.is_empty(),
            Self::TbRefinementIntrusive => config.refine_names,
            Self::CalculateStatsV2 => config.stats && config.build_coll_event,
            _ => true,
        }
    }
}

/// A set of stage occurrences.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StageSet(u64);

const _: () = assert!(Stage::ALL.len() <= 64, "a StageSet has 64 bits");

impl StageSet {
    /// Whether the occurrence is in the set.
    pub fn has(self, stage: Stage) -> bool {
        self.0 & (1 << stage as u8) != 0
    }

    /// Adds an occurrence.
    pub fn insert(&mut self, stage: Stage) {
        self.0 |= 1 << stage as u8;
    }
}

impl FromIterator<Stage> for StageSet {
    fn from_iter<I: IntoIterator<Item = Stage>>(stages: I) -> Self {
        let mut set = Self::default();
        stages.into_iter().for_each(|stage| set.insert(stage));
        set
    }
}

/// Why a profile cannot be used.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum ProfileError {
    /// The text is not JSON.
    #[error("not JSON: {0}")]
    Syntax(String),
    /// There is no list of stages.
    #[error("Profile data is missing 'stages' key.")]
    NoStages,
    /// An entry of the list is not an object of one stage.
    #[error("Each stage entry must contain exactly one stage key.")]
    Entry,
    /// A stage is unknown, or stands where it cannot be matched.
    #[error("Profile references unknown or misplaced stage '{0}'.")]
    Misplaced(String),
}

/// Which stage occurrences may run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Profile {
    enabled: StageSet,
}

/// Stages that acelyzer's `torch_minimal` switches off: host times of a torch trace
/// are final, so nothing is converted, moved to other tids or aligned.
const NOT_IN_TORCH_MINIMAL: &[Stage] = &[
    Stage::DropTimestampReversed,
    Stage::CreateSliceFromBe,
    Stage::FrequencyAlignCollect,
    Stage::BarrierNormalize,
    Stage::FrequencyAlignApply,
    Stage::RemoveIdsFromName,
    Stage::MapTidToRange,
    Stage::CycleCountToWallclock,
    Stage::TightenHtsByInstrType,
    Stage::TriplePhasedEvents,
    Stage::MpSyncTightV1,
    Stage::MpTsCalibrationV2,
    Stage::QueueingCounter,
    Stage::DropGlobalEvents,
    Stage::RecombineCpuEvents,
    Stage::AssertSequenceBeforeOverlap,
    Stage::AnalyzePowerStatistics,
];

/// A stage as a profile names it.
struct Request {
    raw: String,
    name: String,
    index: Option<usize>,
    enabled: bool,
}

impl Profile {
    /// A profile that is built in: `default`, `everything`, `torch_minimal` or
    /// `verification`, with or without `.json`.
    pub fn builtin(name: &str) -> Option<Self> {
        let stages: StageSet = match name.strip_suffix(".json").unwrap_or(name) {
            "default" | "everything" => Stage::analysis().collect(),
            "torch_minimal" => Stage::analysis()
                .filter(|stage| !NOT_IN_TORCH_MINIMAL.contains(stage))
                .collect(),
            "verification" => Stage::verification().collect(),
            _ => return None,
        };
        Some(Self { enabled: stages })
    }

    /// Reads a profile, `{"stages":[{"name":bool},…]}`; an empty object means all.
    ///
    /// Where every repeated name is either absent or listed as often as it occurs,
    /// the list is positional. Otherwise a repeated name means all its occurrences,
    /// and `name#2` the second. What is not listed is off.
    ///
    /// # Errors
    /// See [`ProfileError`].
    pub fn parse(text: &str) -> Result<Self, ProfileError> {
        let data: Value =
            serde_json::from_str(text).map_err(|e| ProfileError::Syntax(e.to_string()))?;
        let is_empty = match &data {
            Value::Object(map) => map.is_empty(),
            Value::Array(list) => list.is_empty(),
            _ => false,
        };
        if is_empty {
            let enabled = Stage::analysis().collect();
            return Ok(Self { enabled });
        }
        let Some(Value::Array(list)) = data.get("stages") else {
            return Err(ProfileError::NoStages);
        };
        let requests: Result<Vec<_>, _> = list.iter().map(Request::parse).collect();
        let enabled = resolve(requests?)?;
        Ok(Self { enabled })
    }

    /// The occurrences that run with these options, with acelyzer's lines about those
    /// that would and do not.
    pub fn register(&self, config: &Config, messages: &mut Messages) -> StageSet {
        let mut set = StageSet::default();
        for &stage in Stage::ALL.iter().filter(|s| s.is_asked_for(config)) {
            let name = stage.name();
            if self.enabled.has(stage) {
                // Two blanks, as acelyzer prints them.
                messages.debug("DAH", format_args!("DAH: registering:  {name}"));
                set.insert(stage);
            } else {
                messages.info(
                    "DAH",
                    format_args!("DAH: Skipping registration of {name} : disabled in profile."),
                );
            }
        }
        set
    }
}

impl Request {
    fn parse(entry: &Value) -> Result<Self, ProfileError> {
        let map = entry.as_object().ok_or(ProfileError::Entry)?;
        let mut keys = map.iter();
        let (Some((raw, value)), None) = (keys.next(), keys.next()) else {
            return Err(ProfileError::Entry);
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
    fn means(&self, stage: Stage, index: usize, count: usize, positional: bool) -> bool {
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
    Stage::analysis().filter(|s| s.name() == name).count()
}

/// Matches a profile's list against the stages of the analysis, forward only.
fn resolve(requests: Vec<Request>) -> Result<StageSet, ProfileError> {
    let listed = |name: &str| requests.iter().filter(|r| r.name == name).count();
    let positional = Stage::analysis().all(|stage| {
        let (count, asked) = (occurrences(stage.name()), listed(stage.name()));
        count == 1 || asked == 0 || asked == count
    });
    let is_recurring = |r: &Request| !positional && r.index.is_none() && occurrences(&r.name) > 1;
    let (recurring, ordered): (Vec<_>, Vec<_>) = requests.into_iter().partition(is_recurring);
    let mut set = StageSet::default();
    let mut next = ordered.iter().peekable();
    for stage in Stage::analysis() {
        let name = stage.name();
        let index = 1 + Stage::analysis()
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
        Some(left) => Err(ProfileError::Misplaced(left.raw.clone())),
        None => Ok(set),
    }
}

#[cfg(test)]
#[path = "stages_tests.rs"]
mod tests;
