"""Runs a subinterpreter in which a function calls C, or another subinterpreter, from functions of
the one around it: `main_outer` > `main_inner` > [`sub_outer` > `sub_inner` >] ... C code.

Argument 1: seconds of CPU time."""

import os
import sys
import time

try:
    import _interpreters as interpreters
except ImportError:
    import _xxsubinterpreters as interpreters

run = getattr(interpreters, "exec", None) or interpreters.run_string

DEEPEST = """
import zlib
data = bytes(100000)
def deep_inner():
    for _ in range(100):
        zlib.crc32(data)
def deep_outer():
    deep_inner()
deep_outer()
"""
BETWEEN = f"""
try:
    import _interpreters as interpreters
except ImportError:
    import _xxsubinterpreters as interpreters
run = getattr(interpreters, "exec", None) or interpreters.run_string
def sub_inner():
    run(DEEP, {DEEPEST!r})
def sub_outer():
    sub_inner()
sub_outer()
"""


def create():
    try:
        return interpreters.create("isolated")
    except TypeError:
        return interpreters.create()


# The order in which they are made is not that in which they call each other.
deep, between = create(), create()


def main_inner():
    run(between, BETWEEN.replace("DEEP", str(int(deep))))


def main_outer():
    main_inner()


print("pid", os.getpid(), flush=True)
end = time.process_time() + float(sys.argv[1])
while time.process_time() < end:
    main_outer()
