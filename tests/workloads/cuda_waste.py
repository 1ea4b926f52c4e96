"""Trains on the virtual CUDA driver, by ctypes: each batch is made by `next_batch` between two
kernels, or with `clean` all of them before the loop."""

import ctypes
import sys
import time

cuda = ctypes.CDLL("libcuda.so.1", mode=ctypes.RTLD_GLOBAL)


def next_batch(ms):
    end = time.monotonic() + ms / 1000
    total = 0
    while time.monotonic() < end:
        total += 1
    return total


def launch(kernel):
    cuda.cuLaunchKernel(kernel, 1, 1, 1, 64, 1, 1, 0, None, None, None)


def train(steps, is_clean):
    kernel = ctypes.c_void_p()
    cuda.cuModuleGetFunction(ctypes.byref(kernel), None, b"train_2000")
    launch(kernel)
    cuda.cuCtxSynchronize()
    for _ in range(steps):
        if not is_clean:
            next_batch(8)
        launch(kernel)
    cuda.cuCtxSynchronize()


if cuda.cuInit(0):
    sys.exit(1)
train(100, "clean" in sys.argv)
