"""Makes the files beside it: `make.py FOLDER_OF_SCRIPTS`, the folder `summary` of unitrace's
scripts (intel/pti-gpu, tools/unitrace/scripts/summary, of fcd0ca8, 2026-06-26), with Python 3.13
or later, which `categorize.py` needs.

`rank0.json` and `rank1.json` are traces as unitrace writes them, made up here. What the scripts
make of `rules.ini`, and of the same numbers as unitrace's text, is `schema.json` and
`summary.AGGREGATOR.json`: nothing of aiprof is in them.
"""

import io
import json
import random
import subprocess
import sys
import tarfile
from pathlib import Path

HERE = Path(__file__).parent
SCRIPTS = Path(sys.argv[1])
AGGREGATORS = ["min", "max", "mean", "median", "sum", "min+1", "max-1"]

# Name, whether it has a shape, calls in each rank.
NAMES = [
    ("gemm_kernel", True, (40, 40)),
    ("gemm_kernel_bf16<8, 16>", True, (12, 13)),
    # Not "gemm": a name that equals a rule that longer ones begin with ends summary.py by a
    # KeyError.
    ("gemmi", True, (3, 3)),
    ("void at::native::reduce_kernel<512, 1, float>", True, (20, 19)),
    ("at::native::layer_norm<c10::Half, float>", True, (7, 7)),
    ("main::{lambda(auto:1)#4}", True, (5, 5)),
    ("other_kernel", True, (4, 0)),
    ("ccl_kernel ALLREDUCE_LARGE", True, (6, 6)),
    ("oneccl::sync::BARRIER", True, (2, 2)),
    ("ignored_kernel", True, (9, 9)),
    ("zeCommandListAppendMemoryCopy(M2D)", False, (30, 31)),
    ("zeCommandListAppendBarrier", None, (15, 15)),
]


def events(rank):
    """Name, shape, begin and length in nanoseconds."""
    rng = random.Random(17 + rank)
    todo = [(name, shape) for name, shape, calls in NAMES for _ in range(calls[rank])]
    rng.shuffle(todo)
    now = 1_700_000_000_000_000
    for name, shape in todo:
        now += rng.randrange(100, 9000)
        length = rng.randrange(50, 400_000)
        text = {True: "[SIMD32 {4; 1; 1} {256; 1; 1}]", False: "[4096]", None: ""}[shape]
        yield name, text, now, length
        now += length


def trace(rank):
    pid = 0xFFFFFFFF - (rank << 5)
    made = [{"ph": "M", "name": "process_name", "pid": pid, "ts": 0,
             "args": {"name": f"RANK {rank} DEVICE<h>[Intel(R) GPU] 0:1:0:0 #0"}}]
    for at, (name, shape, begin, length) in enumerate(events(rank), 1):
        made.append({"ph": "X", "tid": 1, "pid": pid, "name": name + shape, "cat": "gpu_op",
                     "ts": begin / 1000, "dur": length / 1000, "args": {"id": str(at)}})
    lines = ",\n".join(json.dumps(one) for one in made)
    return '{ "traceEvents":[\n' + lines + "\n]\n}\n"


def text(rank):
    rows, all_events = {}, list(events(rank))
    for name, _, _, length in all_events:
        rows.setdefault(name, []).append(length)
    whole = max(b + n for _, _, b, n in all_events) - min(b for _, _, b, _ in all_events)
    total = sum(sum(times) for times in rows.values())
    out = ["", "=== Device Timing Summary ===", "",
           f"                Total Execution Time (ns): {whole:>20}",
           f"    Total Device Time for L0 backend (ns): {total:>20}", "", "== L0 Backend ==", "",
           "   Kernel,        Calls,            Time (ns),     Time (%),         Average (ns),"
           "             Min (ns),             Max (ns)"]
    for name, times in sorted(rows.items(), key=lambda row: -sum(row[1])):
        share = 100 * sum(times) / total
        out.append(f'   "{name}", {len(times):>12}, {sum(times):>20}, {share:>12.6f}, '
                   f"{sum(times) // len(times):>20}, {min(times):>20}, {max(times):>20}")
    return "\n".join(out) + "\n\n"


def main():
    archive = Path("/tmp/categories.tgz")
    with tarfile.open(archive, "w:gz") as tar:
        for rank in (0, 1):
            (HERE / f"rank{rank}.json").write_text(trace(rank))
            data = text(rank).encode()
            member = tarfile.TarInfo(f"out.{rank}.txt")
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    schema = HERE / "schema.json"
    script = [sys.executable, SCRIPTS / "categorize.py", "--ini", HERE / "rules.ini"]
    subprocess.run([*script, "--json", schema], check=True)
    subprocess.run([*script, "--json", HERE / "schema.blanks.json", "--no-remove-spaces"], check=True)
    for name in AGGREGATORS:
        out = HERE / f"summary.{name}.json"
        subprocess.run([sys.executable, SCRIPTS / "summary.py", "--tarfile", archive, "--schema",
                        schema, "--aggregator", name, "--json", out], check=True)


main()
