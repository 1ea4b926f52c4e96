"""How the steps of a trace split, straight from its events: what a test of steps expects.

python3 step_figures.py TRACE.json.gz

A step has the work that it launched. Its device time is that of the step on the host, but begins
no earlier than all work launched before has ended, and ends no earlier than its own work.
"""

import gzip
import json
import sys
from decimal import Decimal

trace = json.load(gzip.open(sys.argv[1]), parse_float=Decimal, parse_int=Decimal)
slices = [e for e in trace["traceEvents"] if e.get("ph") == "X"]


def union(spans):
    joined = []
    for start, end in sorted(spans):
        if joined and start <= joined[-1][1]:
            joined[-1][1] = max(end, joined[-1][1])
        elif start < end:
            joined.append([start, end])
    return joined


def within(spans, start, end):
    return sum((max(Decimal(0), min(b, end) - max(a, start)) for a, b in spans), Decimal(0))


def of(cats):
    return [e for e in slices if e["cat"].lower() in cats]


def purpose(event):
    if "mem" in event["cat"].lower():
        return "copy"
    return "communication" if "nccl" in event["name"].lower() else "compute"


notes = of(("user_annotation", "cpu_op", "operator"))
steps = [e for e in notes if e["name"].startswith("ProfilerStep#")]
calls = of(("cuda_runtime", "cuda_driver", "runtime"))
launched = {e["args"].get("correlation"): e["ts"] for e in calls}
work = [
    (launched.get(e["args"].get("correlation"), e["ts"]), e["ts"], e["ts"] + e["dur"], purpose(e))
    for e in of(("kernel", "gpu_memcpy", "gpu_memset", "memcpy", "memset"))
]
phases = {
    "dataloader": lambda name: "dataloader" in name.lower() and "__init__" not in name,
    "forward": lambda name: name.strip("# ").lower() == "forward" or name.endswith(".forward"),
    "backward": lambda name: name.strip("# ").lower() == "backward"
    or name.startswith("autograd::engine::evaluate_function: "),
    "optimizer": lambda name: name.strip("# ").lower() == "optimizer"
    or name.startswith("Optimizer."),
}
# Less and less of it is hidden: the time of each purpose, with that of those before it.
order = ["compute", "communication", "copy"]
running = [union((a, b) for _, a, b, c in work if c in order[:n]) for n in (1, 2, 3)]
first, last = running[2][0][0], running[2][-1][1]
for step in sorted(steps, key=lambda e: e["ts"]):
    start, end = step["ts"], step["ts"] + step["dur"]
    print(step["name"], "wall", step["dur"])
    for phase, is_one in phases.items():
        spans = union((e["ts"], e["ts"] + e["dur"]) for e in notes if is_one(e["name"]))
        print(" ", phase, within(spans, start, end))
    own = [to for call, _, to, _ in work if start <= call < end]
    before = [to for call, _, to, _ in work if call < start]
    start, end = max([start, first] + before), min(last, max([end] + own))
    sums = [within(spans, start, end) for spans in running]
    print("  span", end - start, "idle", end - start - sums[2])
    print("  compute", sums[0], "communication", sums[1] - sums[0], "copy", sums[2] - sums[1])
