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


def open_device():
    """Context, device and an immediate command list."""
    check(ze.zeInit(0))
    one = c_uint32(1)
    driver = new(ze.zeDriverGet, byref(one))
    device = new(ze.zeDeviceGet, driver, byref(one))
    context = new(ze.zeContextCreate, driver, byref(Desc(0xD)))
    # A queue description: in order.
    immediate = new(ze.zeCommandListCreateImmediate, context, device, byref(Desc(0xE)))
    return context, device, immediate


def load(context, device, module):
    """A module of native code."""
    desc = ModuleDesc(0x1B, None, 1, len(module), module, None, None)
    handle = c_void_p()
    check(ze.zeModuleCreate(context, device, byref(desc), byref(handle), None))
    return handle


def new_kernel(module, name):
    kernel = new(ze.zeKernelCreate, module, byref(KernelDesc(0x1D, None, 0, name)))
    check(ze.zeKernelSetGroupSize(kernel, 8, 2, 1))
    return kernel


def set_up(binary):
    context, device, immediate = open_device()
    module = load(context, device, binary)
    one, name = c_uint32(1), c_char_p()
    check(ze.zeModuleGetKernelNames(module, byref(one), byref(name)))
    return immediate, new_kernel(module, name.value), name.value.decode()


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


if __name__ == "__main__":
    main()
