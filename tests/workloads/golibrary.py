"""Calls a library of Go (argument 1) by ctypes. Argument 2: seconds of CPU time."""

import ctypes
import os
import sys
import time

library = ctypes.CDLL(sys.argv[1])


def called_back():
    library.GoSpin(ctypes.c_long(2000000))


CALLBACK = ctypes.CFUNCTYPE(None)(called_back)


def calls_spin():
    library.GoSpin(ctypes.c_long(4000000))


def calls_fill():
    library.GoFill(ctypes.c_long(20000))


def calls_through():
    library.GoThrough(CALLBACK)


print("pid", os.getpid(), flush=True)
end = time.thread_time() + float(sys.argv[2])
while time.thread_time() < end:
    calls_spin()
    calls_fill()
    calls_through()
