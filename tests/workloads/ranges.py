"""Names ranges by the packages nvtx, ittapi or torch, and writes down what it did.

    ranges.py nvtx | itt | torch

A line for each range goes to the file of RANGES_TRUTH. It has the form (n nested, l loose,
m moment), the process, the thread, the name, the domain, and the clock before and after its
begin and its end.
"""

import os
import sys
import threading
import time

# Each line by one system call: Python's text files lose and mix what several threads write.
TRUTH = os.open(os.environ.get("RANGES_TRUTH", os.devnull), os.O_WRONLY | os.O_APPEND)
now = time.monotonic_ns


def wrote(form, name, domain, begin, end):
    where = f"{os.getpid()}\t{threading.get_native_id()}"
    times = "\t".join(str(ns) for ns in (*begin, *end))
    os.write(TRUTH, f"{form}\t{where}\t{name}\t{domain}\t{times}\n".encode())


def spin(ns):
    until = now() + ns
    while now() < until:
        pass


class Range:
    """A range, with the clock around its begin and its end."""

    def __init__(self, inner, name, domain="", form="n"):
        self.inner, self.about = inner, (form, name, domain)

    def __enter__(self):
        before = now()
        self.inner.__enter__()
        self.begin = (before, now())

    def __exit__(self, *error):
        before = now()
        self.inner.__exit__(*error)
        wrote(*self.about, self.begin, (before, now()))


def work(range_of):
    """Ranges of several threads, one in the other."""

    def one(number):
        for step in range(20):
            with range_of(f"step {step} of {number}"):
                spin(100_000)
                with range_of("größe €"):
                    spin(50_000)

    threads = [threading.Thread(target=one, args=(n,)) for n in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def by_nvtx():
    import nvtx

    def range_of(name):
        inner = nvtx.annotate(name, domain="python.domain", color="red", category="io", payload=7)
        return Range(inner, name, "python.domain")

    work(range_of)
    before = now()
    token = nvtx.start_range("started", domain="python.domain")
    begin = (before, now())
    spin(100_000)
    before = now()
    nvtx.end_range(token)
    wrote("l", "started", "python.domain", begin, (before, now()))
    before = now()
    nvtx.mark("marked", domain="python.domain")
    wrote("m", "marked", "python.domain", (before, now()), (before, now()))


def by_itt():
    import ittapi

    domain = ittapi.Domain("python.itt")

    def range_of(name):
        return Range(ittapi.task(name, domain=domain), name, "python.itt")

    work(range_of)
    with Range(ittapi.task("loose", domain=domain, overlapped=True), "loose", "python.itt", "l"):
        spin(100_000)
    event = ittapi.event("an event")
    with Range(event, "an event", "", "l"):
        spin(100_000)


def by_torch():
    import torch

    torch.set_num_threads(1)
    a, b = torch.ones(64, 64), torch.ones(64, 64)
    with torch.autograd.profiler.emit_itt():
        for _ in range(20):
            before = now()
            torch.ops.aten.mm(a, b)
            # The operator's range is somewhere within.
            wrote("n", "aten::mm", "PyTorch", (before, now()), (before, now()))
    before = now()
    torch.profiler.itt.range_push("by hand")
    begin = (before, now())
    spin(100_000)
    before = now()
    torch.profiler.itt.range_pop()
    wrote("n", "by hand", "PyTorch", begin, (before, now()))


{"nvtx": by_nvtx, "itt": by_itt, "torch": by_torch}[sys.argv[1]]()
print("done")
