//! Names of the runtime's events, by the callback ids (cbid) of runtime records.
//!
//! The ids and names are those of public callers of libaiupti; the spelling is
//! that of the AIU profiler guide (`aiuRDMABarrier1`). Other tools write `Rdma`.

/// Name of each cbid, from 0 on.
const NAMES: [&str; 81] = [
    "aiuINVALID",
    "aiuLaunchControlBlocks",
    "aiuLaunchControlBlocks",
    "aiuLaunchDMIControlBlocks",
    "aiuLaunchDMOControlBlocks",
    "aiuLaunchComputeStream",
    "aiuInitGraph",
    "aiuMalloc",
    "aiuResizeTensorAllocation",
    "aiuLaunchSuperNode",
    "aiuSuperNodeExecution",
    "aiuGraphExecution",
    "aiuNodeCompute",
    "aiuDataConvert",
    "aiuInitScheduler",
    "aiuCreateVirtualAddresses",
    "aiuLaunchScheduleCompute",
    "aiuScheduleWait",
    "aiuPrepareDMAs",
    "aiuPrepareAndSyncRDMA",
    "aiuClearCache",
    "aiuPreloadCache",
    "aiuLaunchComputeStream",
    "aiuRDMABarrier1",
    "aiuPostRDMAKeys",
    "aiuRDMABarrier2",
    "aiuFetchRDMAKeys",
    "aiuUpdateRDMACBs",
    "aiuRDMABarrier3",
    "aiuCheckRDMADeadlock",
    "aiuFileTransferDtoF",
    "aiuFileTransferMtoF",
    "aiuFileTransferFtoD",
    "aiuFileTransferFtoM",
    "aiuDataTransferDtoH",
    "aiuDataTransferHtoD",
    "aiuClockCalibration",
    "aiuCompileGraph",
    "aiuParseResponse",
    "aiuIssueCallback",
    "aiuVerifyAsyncMsgs",
    "aiuCommsCollAllreduce",
    "aiuCommsCollAllgather",
    "aiuCommsCollGather",
    "aiuCommsCollGatherv",
    "aiuCommsCollReduce",
    "aiuCommsCollBroadcast",
    "aiuCommsCollBarrier",
    "aiuCommsWorkSchedStart",
    "aiuCommsWorkSchedWait",
    "aiuCommsCollAllreduceSetup",
    "aiuCommsCollAllgatherSetup",
    "aiuCommsCollGatherSetup",
    "aiuCommsCollGathervSetup",
    "aiuCommsCollReduceSetup",
    "aiuCommsCollBroadcastSetup",
    "aiuCommsWorkSchedPhaseRecord",
    "aiuCommsWorkSchedPhaseWireup",
    "aiuCommsWorkSchedMsgInfoMgr",
    "aiuCommsWorkSchedHdmaRtMgr",
    "aiuCommsWorkSchedPhaseLaunch",
    "aiuCommsOpSync",
    "aiuCommsOpD2HXfer",
    "aiuCommsOpH2DXfer",
    "aiuCommsOpSendData",
    "aiuCommsOpMcastSendData",
    "aiuCommsOpRecvData",
    "aiuCommsOpBcastData",
    "aiuCommsOpGatherData",
    "aiuCommsOpAllgatherData",
    "aiuCommsOpBinaryComp",
    "aiuCommsOpCopy",
    "aiuCommsBundleGen",
    "aiuCommsArtifactLoad",
    "aiuCommsArtifactLaunchOp",
    "aiuCommsCostEst",
    "aiuCommsBenchPairwise",
    "aiuCommsBenchAllreduce",
    "aiuSubmitToHardware",
    "aiuRoundtrip",
    "aiuWaitForQueueCapacity",
];

/// The cbid of control blocks with a kernel: its correlation id is the kernel's.
pub(crate) const LAUNCH_CB_CMPT: u32 = 2;
/// The cbid of handing prepared work to the device.
pub(crate) const SUBMIT_TO_HARDWARE: u32 = 78;

/// The event's name; `None` for 0 and for ids that no public code names.
#[must_use]
pub fn name(cbid: u32) -> Option<&'static str> {
    let at = usize::try_from(cbid).ok().filter(|at| *at > 0)?;
    NAMES.get(at).copied()
}

/// What the data of a runtime record are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Data {
    /// Number of control blocks.
    ControlBlocks,
    /// Bytes moved.
    Bytes,
    /// Nothing that public code uses.
    Unused,
}

impl Data {
    /// What they are for this cbid.
    #[must_use]
    pub(crate) fn of(cbid: u32) -> Self {
        match cbid {
            1..=4 => Self::ControlBlocks,
            30..=35 => Self::Bytes,
            _ => Self::Unused,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The 33 events of the AIU profiler guide.
    const GUIDE: [&str; 33] = [
        "aiuLaunchControlBlocks",
        "aiuInitGraph",
        "aiuMalloc",
        "aiuResizeTensorAllocation",
        "aiuLaunchSuperNode",
        "aiuSuperNodeExecution",
        "aiuGraphExecution",
        "aiuNodeCompute",
        "aiuDataConvert",
        "aiuInitScheduler",
        "aiuCreateVirtualAddresses",
        "aiuLaunchScheduleCompute",
        "aiuScheduleWait",
        "aiuPrepareDMAs",
        "aiuPrepareAndSyncRDMA",
        "aiuClearCache",
        "aiuPreloadCache",
        "aiuLaunchComputeStream",
        "aiuRDMABarrier1",
        "aiuRDMABarrier2",
        "aiuRDMABarrier3",
        "aiuPostRDMAKeys",
        "aiuFetchRDMAKeys",
        "aiuUpdateRDMACBs",
        "aiuCheckRDMADeadlock",
        "aiuFileTransferDtoF",
        "aiuFileTransferMtoF",
        "aiuFileTransferFtoD",
        "aiuFileTransferFtoM",
        "aiuDataTransferDtoH",
        "aiuDataTransferHtoD",
        "aiuClockCalibration",
        "aiuCompileGraph",
    ];

    #[test]
    fn every_event_of_the_guide_has_a_cbid() {
        for event in GUIDE {
            let cbids = (0..=80).filter(|cbid| name(*cbid) == Some(event));
            assert!(cbids.count() >= 1, "{event}");
        }
    }

    #[test]
    fn ids_stand_where_public_code_has_them() {
        assert_eq!(name(LAUNCH_CB_CMPT), Some("aiuLaunchControlBlocks"));
        assert_eq!(name(SUBMIT_TO_HARDWARE), Some("aiuSubmitToHardware"));
        assert_eq!(name(29), Some("aiuCheckRDMADeadlock"));
        assert_eq!(name(41), Some("aiuCommsCollAllreduce"));
        assert_eq!(name(77), Some("aiuCommsBenchAllreduce"));
        assert_eq!(name(80), Some("aiuWaitForQueueCapacity"));
        assert_eq!((name(0), name(81), name(u32::MAX)), (None, None, None));
    }
}
