"""Calls each function of python_scribble.c, and computes in Python before and after.

usage: python_scribble.py LIBRARY SECONDS KIND...
"""
import ctypes
import os
import sys
import time

library = ctypes.PyDLL(sys.argv[1])
seconds = float(sys.argv[2])
state = ctypes.pythonapi.PyThreadState_Get
state.restype = ctypes.c_void_p


def sober():
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        sum(range(100))


def scribble(kind):
    function = getattr(library, kind)
    function.argtypes = [ctypes.c_void_p, ctypes.c_double]
    function.restype = None
    function(state(), seconds)


def main():
    for kind in sys.argv[3:]:
        scribble(kind)
        sober()


main()
print("pid", os.getpid())
