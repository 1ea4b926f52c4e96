"""Prints what tests/torch_tables.rs expects of traces, straight from their events.

python3 torch_figures.py fwdbwd|steps|triton|modules TRACE.json.gz
"""
import collections
import gzip
import json
import sys
from decimal import Decimal

what, path = sys.argv[1:]
events = json.load(gzip.open(path), parse_float=Decimal)["traceEvents"]
slices = [e for e in events if e.get("ph") == "X"]


def fwdbwd():
    """Kineto draws an arrow from each forward operator to its backward one."""
    at = {(e["tid"], e["ts"]): e["name"] for e in slices if e["cat"] == "cpu_op"}
    ends = collections.defaultdict(dict)
    for e in events:
        if e.get("cat") == "fwdbwd":
            ends[e["id"]][e["ph"]] = at.get((e["tid"], e["ts"]))
    pairs = collections.Counter((one["s"], one["f"]) for one in ends.values())
    for (forward, backward), count in sorted(pairs.items(), key=str):
        print(f'("{forward}", "{backward}", {count}),')


def nested(ours):
    """Each event with the innermost of the others around it, by thread."""
    open_ = collections.defaultdict(list)
    for e in sorted(ours, key=lambda e: (e["ts"], -e["dur"])):
        stack = open_[e["tid"]]
        while stack and stack[-1]["ts"] + stack[-1]["dur"] < e["ts"] + e["dur"]:
            stack.pop()
        yield e, stack[-1] if stack else None
        stack.append(e)


def steps():
    """A step has the name of its note: the operator that begins last before it."""
    notes = [e for e in slices if e["cat"] == "user_annotation" and "_data: " in e["name"]]
    ops = [e for e in slices if e["cat"] == "cpu_op"]
    ours, ids = [], {}
    for note in notes:
        name, about = note["name"].split("_data: ")
        around = [
            e
            for e in ops
            if e["name"] == name
            and e["tid"] == note["tid"]
            and e["ts"] <= note["ts"]
            and e["ts"] + e["dur"] >= note["ts"] + note["dur"]
        ]
        step = max(around, key=lambda e: e["ts"])
        ids[id(step)] = about.split("compile_id=")[-1]
        ours.append(step)
    sums = collections.defaultdict(lambda: [0, Decimal(0), Decimal(0)])
    compiles = collections.defaultdict(Decimal)
    for step, around in nested(ours):
        one = sums[step["name"]]
        one[0] += 1
        one[1] += step["dur"]
        one[2] += step["dur"]
        if around:
            sums[around["name"]][1] -= step["dur"]
        if not around or ids[id(around)] != ids[id(step)]:
            compiles[ids[id(step)]] += step["dur"]
    for name, (calls, own, total) in sorted(sums.items(), key=lambda one: -one[1][1])[:8]:
        print(f'("{name}", {calls}, {own}, {total}),')
    runs = collections.defaultdict(lambda: [0, Decimal(0)])
    for e in slices:
        if e["name"].startswith("Torch-Compiled Region: "):
            one = runs[e["name"].split(": ")[1]]
            one[0] += 1
            one[1] += e["dur"]
    for key in sorted(runs):
        print(f'("{key}", {compiles[key]}, {runs[key][0]}, {runs[key][1]}),')


def triton():
    """A kernel belongs to the operator with its external id."""
    device = collections.defaultdict(Decimal)
    for e in slices:
        if e["cat"] == "kernel":
            device[e["args"].get("External id")] += e["dur"]
    sums = collections.defaultdict(lambda: [0, Decimal(0)])
    for e in slices:
        args = e.get("args", {})
        if "kernel_hash" in args:
            one = sums[e["name"], args["kernel_hash"]]
            one[0] += 1
            one[1] += device[args["External id"]]
    for (name, file), (launches, us) in sorted(sums.items()):
        print(f'("{name}", "{file}", {launches}, {us}),')


def modules():
    """A kernel is in the innermost module round its launch. An arrow leads to a backward
    operator: what autograd runs round that (evaluate_function) belongs to it, too."""
    frames = {e["args"]["Python id"]: e for e in slices if e["cat"] == "python_function"}

    def path(frame):
        names = []
        while frame:
            if frame["name"].startswith("nn.Module: "):
                names.insert(0, frame["name"].removeprefix("nn.Module: "))
            frame = frames.get(frame["args"]["Python parent id"])
        return "/".join(names)

    def around(tid, ts, those):
        all_ = [e for e in those if e["tid"] == tid and e["ts"] <= ts <= e["ts"] + e["dur"]]
        return max(all_, key=lambda e: e["ts"], default=None)

    mods = [e for e in frames.values() if e["name"].startswith("nn.Module: ")]
    sums = collections.defaultdict(lambda: [0] + [Decimal(0)] * 5)
    for e in mods:
        one = sums[path(e)]
        one[0] += 1
        one[1] += e["dur"]
        one[2] += e["dur"]
        if "/" in path(e):
            sums[path(e).rpartition("/")[0]][2] -= e["dur"]
    made = {e["id"]: e for e in events if e.get("cat") == "fwdbwd" and e["ph"] == "s"}
    ends = {(e["tid"], e["ts"]): e["id"] for e in events if e.get("cat") == "fwdbwd" and e["ph"] == "f"}
    back = [e for e in slices if e["cat"] == "cpu_op" and (e["tid"], e["ts"]) in ends]
    own_spans = [e for e in slices if e["name"].startswith("autograd::engine::evaluate")]
    for e in list(back):
        span = around(e["tid"], e["ts"], own_spans)
        if span:
            ends[span["tid"], span["ts"]] = ends[e["tid"], e["ts"]]
            back.append(span)
    calls = {
        e["args"]["correlation"]: e for e in slices if e["cat"] in ("cuda_runtime", "cuda_driver")
    }
    for e in slices:
        if e["cat"] not in ("kernel", "gpu_memcpy", "gpu_memset"):
            continue
        call = calls.get(e["args"]["correlation"])
        module = call and around(call["tid"], call["ts"], mods)
        own, total = 4, 3
        if call and not module:
            op = around(call["tid"], call["ts"], back)
            start = op and made[ends[op["tid"], op["ts"]]]
            module = start and around(start["tid"], start["ts"], mods)
            own, total = None, 5
        at = path(module) if module else ""
        if own:
            sums[at][own] += e["dur"]
        while True:
            sums[at][total] += e["dur"]
            if "/" not in at:
                break
            at = at.rpartition("/")[0]
    for at, one in sorted(sums.items()):
        print(f'("{at}", {one[0]}, {", ".join(f"{us:.3f}" for us in one[1:])}),')


{"modules": modules, "fwdbwd": fwdbwd, "steps": steps, "triton": triton}[what]()
