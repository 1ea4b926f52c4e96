"""A training loop as frameworks run it, on Level Zero through ctypes: ze_ai.py MODULE STEPS.

The module has the kernels of ai.cl. It prints the same account as the other Level Zero
workloads.
"""

import json
import os
import sys

from ctypes import byref, c_uint64

# Nothing is written beside the sources.
sys.dont_write_bytecode = True

from ze_python import Desc, Groups, check, load, new, new_kernel, open_device, ze  # noqa: E402


class Device:
    """An immediate command list and kernels by name."""

    def __init__(self, binary, names):
        context, device, self.immediate = open_device()
        module = load(context, device, binary)
        self.kernels = {name: new_kernel(module, name.encode()) for name in names}
        self.launches = dict.fromkeys(names, 0)
        # One event, which the host sees and waits for.
        pool = new(ze.zeEventPoolCreate, context, byref(Desc(0x10, None, (1, 1))), 0, None)
        self.event = new(ze.zeEventCreate, pool, byref(Desc(0x11)))

    def launch(self, name, groups):
        size = Groups(groups, 1, 1)
        kernel = self.kernels[name]
        check(ze.zeCommandListAppendLaunchKernel(
            self.immediate, kernel, byref(size), None, 0, None))
        self.launches[name] += 1

    def synchronize(self):
        check(ze.zeCommandListAppendBarrier(self.immediate, self.event, 0, None))
        check(ze.zeEventHostSynchronize(self.event, c_uint64(2**64 - 1)))
        check(ze.zeEventHostReset(self.event))


class Linear:
    def __init__(self, device, size):
        self.device, self.size = device, size

    def forward(self):
        self.device.launch("matmul", self.size)

    def backward(self):
        # The gradients of the input and of the weights.
        self.device.launch("matmul", self.size)
        self.device.launch("matmul", self.size)


class Attention:
    def __init__(self, device, size):
        self.device, self.size = device, size
        self.project = Linear(device, size)

    def forward(self):
        self.project.forward()
        self.device.launch("matmul", self.size)
        self.device.launch("softmax", self.size)

    def backward(self):
        self.device.launch("softmax", self.size)
        self.device.launch("matmul", self.size)
        self.project.backward()


class Adam:
    def __init__(self, device, parameters):
        self.device, self.parameters = device, parameters

    def step(self):
        for _ in range(self.parameters):
            self.device.launch("adam", 16)


def train_step(layers, optimizer, device):
    for layer in layers:
        layer.forward()
    for layer in reversed(layers):
        layer.backward()
    optimizer.step()
    device.synchronize()


def train(device, steps):
    layers = [Attention(device, 32), Linear(device, 64), Linear(device, 64)]
    optimizer = Adam(device, len(layers))
    for _ in range(steps):
        train_step(layers, optimizer, device)


def main():
    with open(sys.argv[1], "rb") as file:
        device = Device(file.read(), ["matmul", "softmax", "adam"])
    train(device, int(sys.argv[2]))
    check(ze.zeCommandListDestroy(device.immediate))
    print(json.dumps({"mode": "ai", "pid": os.getpid(), "launches": device.launches}))


if __name__ == "__main__":
    main()
