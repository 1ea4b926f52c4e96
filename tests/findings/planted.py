"""Traces of PyTorch's profiler and of FLEX with one planted problem each, and the same without
it: `planted.py NAME FOLDER`. *Synthetic*: a small simulation of a host that launches, streams
that run in order, and ranks that meet in collectives; no code of aiprof is in it.

The folder gets `planted/*.json` and `clean/*.json`. On stdout: the problem's kind and what it
costs, microseconds: how much longer the planted run takes than the clean one, by simulation.
"""

import json
import random
import sys
from pathlib import Path

PID, TID = 4242, 4242
CLOCK = 4_814_873_000_000.0


class Device:
    """A rank: one thread, a device with streams. Times are microseconds."""

    def __init__(self, rank, seed, ranks=1):
        self.rank, self.ranks = rank, ranks
        self.random = random.Random(seed * 1000 + rank)
        self.now = 0.0
        self.free = {}
        self.events = []
        self.correlation = 0
        self.first, self.last = None, 0.0
        self.mhz = 1500.0

    def span(self, cat, name, begin, end, tid=TID, pid=PID, **args):
        begin, end = round(begin, 2), round(end, 2)
        event = {"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": tid,
                 "ts": round(CLOCK + begin, 2), "dur": round(end - begin, 2), "args": args}
        self.events.append(event)

    def host(self, cat, name, us):
        begin, self.now = self.now, self.now + us * self.random.uniform(0.98, 1.02)
        if name:
            self.span(cat, name, begin, self.now)

    def run(self, cat, name, begin, us, stream, **args):
        start = max(begin, self.free.get(stream, 0.0))
        self.free[stream] = start + us
        self.first = start if self.first is None else self.first
        self.last = max(self.last, start + us)
        self.span(cat, name, start, start + us, tid=stream, pid=0, device=0, stream=stream,
                  correlation=self.correlation, **args)
        return start + us

    def launch(self, name, us, stream=7, call_us=6.0, **args):
        self.correlation += 1
        begin, self.now = self.now, self.now + call_us * self.random.uniform(0.9, 1.1)
        self.span("cuda_runtime", "cudaLaunchKernel", begin, self.now, correlation=self.correlation)
        return self.run("kernel", name, self.now, us, stream, **args)

    def copy(self, name, us, nbytes, stream=7, blocks=False, staging_us=0.0):
        self.correlation += 1
        begin = self.now
        ready = begin + 4.0 + staging_us
        if blocks:
            ready = max(ready, self.free.get(stream, 0.0) + staging_us)
        end = self.run("gpu_memcpy", name, ready, us, stream, bytes=nbytes)
        self.now = end + 2.0 if blocks else begin + 5.0
        self.span("cuda_runtime", "cudaMemcpyAsync", begin, self.now, correlation=self.correlation)

    def sync(self, stream=7):
        begin, self.now = self.now, max(self.now, self.free.get(stream, 0.0)) + 3.0
        self.span("cuda_runtime", "cudaStreamSynchronize", begin, self.now)

    def counter(self, at, mhz):
        self.events.append({"ph": "C", "name": "GPU clock", "pid": 0, "tid": 0,
                            "ts": round(CLOCK + at, 3), "args": {"MHz": mhz}})

    def write(self, path):
        end = max(self.now, self.last)
        self.span("Trace", "PyTorch Profiler (0)", 0.0, end, tid="PyTorch Profiler", pid="Spans")
        trace = {
            "schemaVersion": 1,
            "deviceProperties": [{"id": 0, "name": "made up", "computeMajor": 9}],
            "distributedInfo": {"backend": "nccl", "rank": self.rank, "world_size": self.ranks},
            "otherData": {"synthetic": True},
            "traceEvents": sorted(self.events, key=lambda event: event["ts"]),
        }
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(trace))
        return end


KERNELS = [("void gemm_f16(Params)", 900.0), ("layer_norm_kernel", 260.0),
           ("void softmax_warp<float>(float*)", 140.0)]


def step(device, us=1.0, count=1):
    for _ in range(count):
        for name, length in KERNELS:
            device.host("cpu_op", "aten::op_" + name.split("_")[0].replace("void ", ""), 9.0)
            device.launch(name, length * us * device.random.uniform(0.99, 1.01))


def single(body, seed):
    """Runs `body(device, is_planted)` both ways."""
    both = {}
    for planted in (True, False):
        device = Device(0, seed)
        body(device, planted)
        device.sync()
        both[planted] = [device]
    return both


def dataloader(device, planted):
    """Each step waits 9 ms for its data; or workers have them ready."""
    for _ in range(40):
        name = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
        device.host("user_annotation", name, 9000.0 if planted else 40.0)
        step(device, count=3)
        if device.now + 8000.0 < device.free[7]:
            device.now = device.free[7] - 8000.0


def starved(device, planted):
    """Python works for 5 ms between two steps."""
    step(device)
    for _ in range(60):
        begin = device.now
        if planted:
            device.host("python_function", "tokenize.py(17): encode", 5000.0)
        device.host("python_function", "tokenize.py(3): pack", 30.0)
        device.span("python_function", "train.py(42): next_batch", begin - 1, device.now + 1)
        device.now += 2
        step(device)


def items(device, planted):
    """.item() in each step: a copy of 4 bytes, and a wait for it."""
    for _ in range(80):
        device.host("cpu_op", "aten::forward", 1100.0)
        step(device)
        if planted:
            begin = device.now
            device.copy("Memcpy DtoH (Device -> Pageable)", 1.2, 4)
            device.sync()
            device.span("cpu_op", "aten::item", begin - 0.5, device.now + 0.5)
            device.now += 1


def short(device, planted):
    """The same elements in kernels of 2 us, or in kernels of 200."""
    for _ in range(30):
        for _ in range(100 if planted else 1):
            device.host("cpu_op", "aten::add_", 7.0)
            device.launch("vectorized_elementwise_kernel", 2.0 if planted else 200.0)


def copies(device, planted):
    """The batch is copied before the step's kernels, or on a stream of its own."""
    for _ in range(40):
        device.copy("Memcpy HtoD (Pinned -> Device)", 700.0, 16_000_000, 7 if planted else 20)
        step(device)


def pageable(device, planted):
    """The batch is copied from pageable memory, in which the host waits; or from pinned."""
    for _ in range(40):
        if planted:
            device.copy("Memcpy HtoD (Pageable -> Device)", 1900.0, 16_000_000, blocks=True,
                        staging_us=300.0)
        else:
            device.copy("Memcpy HtoD (Pinned -> Device)", 700.0, 16_000_000, 20)
        step(device)


def late_rank(planted, seed, late=2):
    """Four ranks; one of them comes 3 ms late to the all-reduce of each step."""
    ranks = [Device(rank, seed, 4) for rank in range(4)]
    for _ in range(50):
        for device in ranks:
            step(device, count=4)
            if planted and device.rank == late:
                device.launch("extra_preprocessing_kernel", 3000.0)
        ready = max(max(device.free[7], device.now + 6) for device in ranks)
        for device in ranks:
            begin = max(device.free[7], device.now + 6)
            name = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
            device.launch(name, ready - begin + 150.0)
    for device in ranks:
        device.sync()
    return ranks


def exposed(device, planted):
    """All-reduces on the kernels' stream, or behind them."""
    for _ in range(40):
        step(device)
        name = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
        device.launch(name, 600.0, 7 if planted else 24)


def throttled(device, planted):
    """From a third of the time on the clock is 900 instead of 1500 MHz."""
    device.counter(0.0, 1500)
    for number in range(90):
        slow = planted and number >= 30
        if number == 30:
            at = device.free[7]
            device.counter(at, 900 if planted else 1500)
        step(device, 1500 / 900 if slow else 1.0)


def spills(device, planted):
    """A kernel of 2 ms is 3 ms long because it spills."""
    for number in range(60):
        step(device)
        args = {"spill_bytes": 1024 if planted else 0} if number == 0 else {}
        device.host("cpu_op", "aten::attention", 9.0)
        device.launch("flash_attention_kernel", 3000.0 if planted else 2000.0, **args)


def compiled(device, frame, number, compile_us, inner=None):
    """A call of a compiled function, which may be compiled first; `inner` runs within it."""
    if compile_us:
        begin, device.now = device.now, device.now + compile_us
        device.span("cpu_op", "dynamo", begin, device.now)
        device.span("user_annotation", f"dynamo_data: compile_id={frame}/{number}", begin + 5, begin + 9)
    begin, device.now = device.now, device.now + 1
    step(device)
    if inner:
        inner()
    device.now += 1
    device.span("cpu_op", f"Torch-Compiled Region: {frame}/{number}", begin, device.now)


def recompilation(device, planted):
    """The function is compiled again at two of 30 calls."""
    step(device)
    for number in range(30):
        times = number // 10 if planted else 0
        compiled(device, 0, times, 300_000.0 if number == 0 or planted and number % 10 == 0 else 0)


def graph_breaks(device, planted):
    """What is behind a break is a frame of its own, that is compiled by itself."""
    step(device)
    for number in range(30):
        def behind(first=number == 0):
            compiled(device, 1, 0, 200_000.0 if first else 0)
        compiled(device, 0, 0, 60_000.0 if number == 0 else 0, behind if planted else lambda: step(device))


SINGLE = {"recompilation": recompilation, "graph-breaks": graph_breaks,
          "dataloader-stall": dataloader, "launch-starved": starved, "synchronous-wait": items,
          "short-kernels": short, "copy-not-overlapped": copies, "pageable-copy": pageable,
          "communication-not-hidden": exposed, "throttling": throttled, "spills": spills}


def flex(planted, seed):
    """An AIU: preparations are done while the kernel before runs, or take longer than it."""
    draw = random.Random(seed)
    mhz, offset = 560.0, 123_456_789
    events, ready, free = [], 0.0, 0.0
    for number in range(200):
        kernel = 500.0 * draw.uniform(0.98, 1.02)
        prepare = (1300.0 if planted else 300.0) * draw.uniform(0.98, 1.02)
        begin, ready = ready, ready + prepare
        start = max(ready, free)
        free = start + kernel
        name = ["add_1", "matmul_7", "relu_3", "softmax_2"][number % 4]

        def event(what, ts, end, stamps):
            stamps = [str(int(offset + at * mhz) % 2**32) for at in stamps]
            args = {f"TS{place}": stamp for place, stamp in enumerate(stamps, 1)}
            args["jobhash"] = "7"
            events.append({"ph": "X", "name": f"{name} Cmpt {what}", "pid": 0, "tid": 1 + (what == "Exec"),
                           "ts": round(CLOCK + round(ts, 2), 2), "dur": round(round(end, 2) - round(ts, 2), 2), "args": args})

        stamps = [begin, begin, start, free, free + 0.01]
        event("Prep", begin, start, stamps)
        event("Exec", start, free, stamps)
    return events, free


def write_flex(folder, seed):
    took = {}
    for planted in (True, False):
        events, took[planted] = flex(planted, seed)
        path = folder / ("planted" if planted else "clean") / "0.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        trace = {"otherData": {"synthetic": True}, "traceEvents": sorted(events, key=lambda e: e["ts"])}
        path.write_text(json.dumps(trace))
    return took[True] - took[False]


def main():
    name, folder = sys.argv[1], Path(sys.argv[2])
    seed = int(sys.argv[3]) if len(sys.argv) > 3 else 1
    if name == "prep-queue-starved":
        cost = write_flex(folder, seed)
    else:
        both = ({planted: late_rank(planted, seed) for planted in (True, False)}
                if name == "late-rank" else single(SINGLE[name], seed))
        took = {planted: max([device.write(folder / ("planted" if planted else "clean") / f"{device.rank}.json")
                              for device in devices])
                for planted, devices in both.items()}
        cost = took[True] - took[False]
    print(json.dumps({"kind": name, "cost_us": cost}))


if __name__ == "__main__":
    main()
