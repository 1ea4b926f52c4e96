"""How long a program takes to end after its last line.

Usage: torch_exit.py PROGRAM ARGS... The program's last line is `end NS`, CLOCK_MONOTONIC;
prints `exit_ms` and its status.
"""

import subprocess
import sys
import time

done = subprocess.run(sys.argv[1:], stdout=subprocess.PIPE, text=True, check=False)
after = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
last = done.stdout.splitlines()[-1].split()
assert last[0] == "end", done.stdout
print("exit_ms", (after - int(last[1])) // 1_000_000)
print("status", done.returncode, flush=True)
