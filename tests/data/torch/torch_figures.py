"""Prints what tests/torch_tables.rs expects of traces, straight from their events.

python3 torch_figures.py fwdbwd|steps|triton TRACE.json.gz
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


{"fwdbwd": fwdbwd, "steps": steps, "triton": triton}[what]()
