"""How long the device of a real trace of PyTorch idles while its thread is in the DataLoader,
microseconds: `loader_idle.py TRACE.json.gz`. It checks each microsecond on its own."""

import gzip
import json
import sys

with gzip.open(sys.argv[1]) as file:
    events = [event for event in json.load(file)["traceEvents"] if event.get("ph") == "X"]
work = [e for e in events if e.get("cat", "").lower() in
        ("kernel", "memcpy", "memset", "gpu_memcpy", "gpu_memset")]
first = min(e["ts"] for e in work)
last = max(e["ts"] + e["dur"] for e in work)
busy = bytearray(last - first)
for e in work:
    busy[e["ts"] - first:e["ts"] + e["dur"] - first] = b"\1" * e["dur"]
idle = set()
for e in events:
    if "DataLoader" in e["name"]:
        begin, end = max(e["ts"], first), min(e["ts"] + e["dur"], last)
        idle.update(at for at in range(begin, end) if not busy[at - first])
print(len(idle))
