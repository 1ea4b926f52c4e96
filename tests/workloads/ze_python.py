"""A Level Zero program in Python, through ctypes: ze_python.py MODULE LAUNCHES.

It prints the same account as the other Level Zero workloads.
"""

import ctypes
import json
import os
import sys
import threading
from ctypes import byref, c_char_p, c_size_t, c_uint32, c_void_p

ze = ctypes.CDLL("libze_loader.so.1")


class Desc(ctypes.Structure):
    _fields_ = [("stype", c_uint32), ("next", c_void_p), ("flags", c_uint32 * 6)]


class ModuleDesc(ctypes.Structure):
    _fields_ = [
        ("stype", c_uint32),
        ("next", c_void_p),
        ("format", c_uint32),
        ("size", c_size_t),
        ("bytes", c_char_p),
        ("build_flags", c_char_p),
        ("constants", c_void_p),
    ]


class KernelDesc(ctypes.Structure):
    _fields_ = [
        ("stype", c_uint32),
        ("next", c_void_p),
        ("flags", c_uint32),
        ("name", c_char_p),
    ]


class Groups(ctypes.Structure):
    _fields_ = [("x", c_uint32), ("y", c_uint32), ("z", c_uint32)]


def check(status):
    if status != 0:
        sys.exit(f"a call failed: {status & 0xffffffff:#x}")


def new(function, *arguments):
    """Calls a function whose last argument is a place for a handle."""
    handle = c_void_p()
    check(function(*arguments, byref(handle)))
    return handle


def set_up(module):
    check(ze.zeInit(0))
    one = c_uint32(1)
    driver = new(ze.zeDriverGet, byref(one))
    device = new(ze.zeDeviceGet, driver, byref(one))
    context = new(ze.zeContextCreate, driver, byref(Desc(0xD)))
    desc = ModuleDesc(0x1B, None, 1, len(module), module, None, None)
    handle = c_void_p()
    check(ze.zeModuleCreate(context, device, byref(desc), byref(handle), None))
    name = c_char_p()
    check(ze.zeModuleGetKernelNames(handle, byref(one), byref(name)))
    kernel = new(ze.zeKernelCreate, handle, byref(KernelDesc(0x1D, None, 0, name.value)))
    check(ze.zeKernelSetGroupSize(kernel, 8, 2, 1))
    # A queue description: in order.
    immediate = new(ze.zeCommandListCreateImmediate, context, device, byref(Desc(0xE)))
    return immediate, kernel, name.value.decode()


def launch(immediate, kernel, width):
    groups = Groups(width, 1, 1)
    check(ze.zeCommandListAppendLaunchKernel(immediate, kernel, byref(groups), None, 0, None))


def inner(immediate, kernel, launches, width):
    for _ in range(launches):
        launch(immediate, kernel, width)


def outer(immediate, kernel, launches, width):
    inner(immediate, kernel, launches, width)


def main():
    with open(sys.argv[1], "rb") as file:
        immediate, kernel, name = set_up(file.read())
    launches = int(sys.argv[2])
    thread = threading.Thread(target=outer, args=(immediate, kernel, launches, 6))
    thread.start()
    outer(immediate, kernel, launches, 5)
    thread.join()
    check(ze.zeCommandListDestroy(immediate))
    account = {"mode": "python", "pid": os.getpid(), "launches": {name: 2 * launches}}
    print(json.dumps(account))


main()
