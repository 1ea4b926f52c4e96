"""Known lines of Python call known operators of PyTorch: their comments name them.

Usage: torch_lines.py SECONDS LOG. Runs until it has worked so long, prints its threads'
numbers, and writes to LOG when each call of `multiply` began and ended, in nanoseconds of
CLOCK_MONOTONIC. The last line that it prints is that clock at its end.
"""

import json
import sys
import threading
import time

import torch
from torch.profiler import record_function

torch.set_num_threads(1)
SQUARE = torch.randn(500, 500)
LONG = torch.randn(100_000)
WIDE = torch.randn(2000, 1000)
MODEL = torch.nn.Linear(500, 500)
CALLS = []


def now():
    return time.clock_gettime_ns(time.CLOCK_MONOTONIC)


def multiply():
    begin = now()
    result = torch.mm(SQUARE, SQUARE)  # -> aten::mm
    CALLS.append((begin, now()))
    return result


def normalize():
    return torch.softmax(WIDE, dim=1)  # -> aten::softmax


def order():
    return torch.sort(LONG)  # -> aten::sort


def forward(x):
    return MODEL(x)


def step():
    with record_function("marked_step"):
        x = multiply()
        order()
        normalize()
        forward(x).sum().backward()


def accumulate(end):
    while now() < end:
        torch.cumsum(LONG, dim=0)  # -> aten::cumsum


def main():
    end = now() + int(float(sys.argv[1]) * 1e9)
    other = threading.Thread(target=accumulate, args=(end,))
    other.start()
    print("main", threading.get_native_id())
    print("other", other.native_id, flush=True)
    while now() < end:
        step()
    other.join()
    with open(sys.argv[2], "w") as log:
        json.dump(CALLS, log)
    print("end", now(), flush=True)


main()
