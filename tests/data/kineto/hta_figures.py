"""What HolisticTraceAnalysis (pip install HolisticTraceAnalysis==0.5.0) finds in traces.

HTA_DISABLE_NS_ROUNDING=1 python3 hta_figures.py FILE.json.gz...

Kernels, copies and fills only: HTA also takes waits (cuda_sync) for kernels, by their names.
"""

import json
import logging
import os
import sys
import warnings

warnings.filterwarnings("ignore")
logging.disable(logging.CRITICAL)

from hta.trace_analysis import TraceAnalysis  # noqa: E402
from hta.utils.utils import get_kernel_type, merge_kernel_intervals  # noqa: E402

DEVICE = ("kernel", "gpu_memcpy", "gpu_memset", "memcpy", "memset")

for path in sys.argv[1:]:
    path = os.path.abspath(path)
    # Else HTA leaves the last step out.
    analysis = TraceAnalysis(
        trace_files={0: path}, trace_dir="/", include_last_profiler_step=True
    )
    names = analysis.t.symbol_table.get_sym_table()
    events = analysis.t.get_trace(0)
    wanted = {i for i, name in enumerate(names) if name.lower() in DEVICE}
    events = events[events["cat"].isin(wanted)].copy()
    events["type"] = events["name"].apply(lambda i: get_kernel_type(names[i]))
    found = {"file": os.path.basename(path)}
    for kind, group in events.groupby("type"):
        merged = merge_kernel_intervals(group[["ts", "dur"]].copy())
        union = float((merged["end"] - merged["ts"]).sum())
        found[kind] = {"count": len(group), "us": round(union, 3)}
    overlap = analysis.get_comm_comp_overlap(visualize=False)
    found["overlap_percent"] = float(overlap.iloc[0]["comp_comm_overlap_pctg"])
    print(json.dumps(found))
