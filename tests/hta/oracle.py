"""What HolisticTraceAnalysis 0.5.0 finds in traces, as JSON: oracle.py MODE RANK=TRACE...

MODE "shipped" runs it as it is. MODE "plain" takes four habits out of it that change
figures and are none of an analysis's definition:
- rounding: begins of float times up, ends down (HTA_DISABLE_NS_ROUNDING=1); parts of a
  time by types of kernels to whole microseconds;
- steps: with two or more ProfilerStep annotations the last step's events go;
- cuda_sync: rows of the profiler for waits of the host are taken for work of the device;
- stream: so is an operator or annotation with an argument of that name.
"diff" as MODE compares steps 1009 and 1010 of two traces: control, test.
"""

import json
import logging
import math
import os
import sys
import tempfile

MODE = sys.argv[1]
if MODE != "shipped":
    os.environ["HTA_DISABLE_NS_ROUNDING"] = "1"
# Kernels stay behind their launch.
os.environ["CRITICAL_PATH_ADD_ZERO_WEIGHT_LAUNCH_EDGE"] = "1"
logging.disable(logging.CRITICAL)

import warnings

warnings.filterwarnings("ignore")
import pandas as pd
from hta.analyzers.breakdown_analysis import BreakdownAnalysis
from hta.analyzers.communication_analysis import CommunicationAnalysis
from hta.analyzers.critical_path_analysis import CriticalPathAnalysis
from hta.analyzers.cuda_kernel_analysis import CudaKernelAnalysis
from hta.analyzers.cupti_counter_analysis import CuptiCounterAnalysis
from hta.analyzers.straggler_analysis import StragglerAnalysis
from hta.analyzers.trace_counters import TraceCounters
from hta.common.trace import Trace
from hta.trace_diff import DeviceType, LabeledTrace, TraceDiff

CudaKernelAnalysis.visualize_aten_op_kernels_and_overhead = classmethod(
    lambda *args: None
)
if MODE != "shipped":
    Trace._filter_irrelevant_gpu_kernels = lambda *args: None


DEVICE = ("kernel", "gpu_memcpy", "gpu_memset", "Kernel", "Memcpy", "Memset")


def load(files):
    trace = Trace(trace_files=files, trace_dir="/")
    trace.load_traces(use_multiprocessing=False, use_memory_profiling=False)
    for rank in trace.traces:
        frame = trace.traces[rank]
        # Loaded times are of their rank's first event on.
        frame["end"] = frame["ts"] + frame["dur"]
        if MODE != "shipped":
            symbols = trace.symbol_table.get_sym_id_map()
            known = [symbols.get(cat) for cat in (*DEVICE, "cuda_sync")]
            frame.loc[~frame["cat"].isin(known), "stream"] = -1
    return trace


def without_sync(trace):
    """The same trace without the rows of waits."""
    sync = trace.symbol_table.get_sym_id_map().get("cuda_sync")
    if MODE == "shipped" or sync is None:
        return trace
    other = Trace.__new__(Trace)
    other.__dict__.update(trace.__dict__)
    other.traces = {
        rank: frame[frame["cat"] != sync].copy() for rank, frame in trace.traces.items()
    }
    return other


def rows(frame):
    """Rows with plain numbers."""
    if frame is None:
        return []
    if isinstance(frame.columns, pd.MultiIndex):
        frame = frame.copy()
        frame.columns = [c[-1] if isinstance(c, tuple) else c for c in frame.columns]
    if any(name is not None for name in frame.index.names):
        frame = frame.reset_index()
    return [
        {str(k): plain(v) for k, v in row.items()} for row in frame.to_dict("records")
    ]


def plain(value):
    if hasattr(value, "item"):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    return value


def by_rank(trace, function):
    all_rows = []
    for rank in sorted(trace.traces):
        all_rows += [{"rank": rank, **row} for row in function(rank)]
    return all_rows


def critical(trace, rank):
    graph, is_done = CriticalPathAnalysis.critical_path_analysis(
        trace, rank=rank, annotation="", instance_id=None
    )
    if not is_done:
        raise ValueError("no path")
    frame = graph.get_critical_path_breakdown()
    sums = frame.groupby("bound_by").duration.sum()
    return [{"bound_by": k, "us": plain(v)} for k, v in sums.items()]


def kernel_types(trace):
    """With times in nanoseconds, of which a whole number is no rounding."""
    scale = 1 if MODE == "shipped" else 1000
    for frame in trace.traces.values():
        frame[["ts", "dur"]] = (frame[["ts", "dur"]] * scale).round()
    found = BreakdownAnalysis.get_gpu_kernel_breakdown(
        trace, False, num_kernels=1 << 30, include_memory_kernels=True
    )[0]
    found["sum"] = found["sum"] / scale
    return rows(found)


def counters(trace, rank):
    found = CuptiCounterAnalysis.get_counter_data_with_operators(trace, [rank])
    return rows(found[0]) if found else []


def sequences(trace, rank, operator):
    frame = CudaKernelAnalysis.get_frequent_cuda_kernel_sequences(
        trace, operator, tempfile.mkdtemp(), rank=rank, visualize=False
    )
    return rows(frame)


def analyses(trace, operator):
    kernels = without_sync(trace)
    return {
        "temporal": lambda: rows(BreakdownAnalysis.get_temporal_breakdown(kernels, False)),
        "comm-overlap": lambda: rows(
            CommunicationAnalysis.get_comm_comp_overlap(kernels, False)
        ),
        "kernel-types": lambda: kernel_types(kernels),
        "kernel-breakdown": lambda: rows(
            BreakdownAnalysis.get_gpu_kernel_breakdown(
                kernels, False, num_kernels=1 << 30, include_memory_kernels=True
            )[1]
        ),
        "idle": lambda: by_rank(
            trace,
            lambda rank: rows(
                BreakdownAnalysis.get_idle_time_breakdown(trace, 30, rank, None, False)[0]
            ),
        ),
        "queue-length": lambda: rows(
            TraceCounters.get_queue_length_summary(trace, sorted(trace.traces))
        ),
        "queue_blocked": lambda: rows(
            TraceCounters.get_time_spent_blocked_on_full_queue(
                trace,
                TraceCounters.get_queue_length_time_series(trace, sorted(trace.traces)),
                1024,
            )
        ),
        "launches": lambda: by_rank(
            trace,
            lambda rank: rows(
                CudaKernelAnalysis.cuda_kernel_launch_stats(
                    kernels, [rank], visualize=False
                )[rank]
            ),
        ),
        "gpu_annotations": lambda: rows(
            BreakdownAnalysis.get_gpu_user_annotation_breakdown(
                trace, True, False, num_kernels=1 << 30
            )
        ),
        "cpu_annotations": lambda: rows(
            BreakdownAnalysis.get_gpu_user_annotation_breakdown(
                trace, False, False, num_kernels=1 << 30
            )
        ),
        "memory-bandwidth": lambda: rows(
            TraceCounters.get_memory_bw_summary(trace, sorted(trace.traces))
        ),
        "op-delays": lambda: by_rank(
            trace,
            lambda rank: rows(
                CudaKernelAnalysis.get_aten_op_kernels_and_delay(trace, [rank])[rank]
            ),
        ),
        "kernel-sequences": lambda: by_rank(
            trace, lambda rank: sequences(kernels, rank, operator)
        ),
        "cupti-counters": lambda: by_rank(trace, lambda rank: counters(trace, rank)),
        "stragglers": lambda: [
            {"rank": plain(rank)}
            for rank in StragglerAnalysis.get_potential_stragglers(trace)
        ],
        "critical-path": lambda: by_rank(trace, lambda rank: critical(trace, rank)),
    }


def attempt(function):
    try:
        return function()
    except Exception as error:  # What HTA cannot do is a result too.
        return {"error": f"{type(error).__name__}: {error}"[:200]}


def main():
    given = [argument for argument in sys.argv[2:] if "=" in argument]
    files = dict(argument.split("=", 1) for argument in given)
    wanted = [argument for argument in sys.argv[2:] if "=" not in argument]
    operator = files.pop("operator", "aten::")
    files = {int(rank): path for rank, path in files.items()}
    if MODE == "diff":
        control, test = (load({0: files[at]}) for at in (0, 1))
        frame = TraceDiff.compare_traces(
            LabeledTrace(label="control", t=control),
            LabeledTrace(label="test", t=test),
            control_iteration=[1009, 1010],
            test_iteration=[1009, 1010],
        )
        json.dump({"trace-diff": rows(frame)}, sys.stdout)
        return
    found = {}
    # Analyses add columns to what they look at: each gets its own.
    for name in analyses(load(files), operator):
        if not wanted or name in wanted:
            found[name] = attempt(lambda: analyses(load(files), operator)[name]())
    json.dump(found, sys.stdout)


main()
