"""Works with the AIU runtime through ctypes: aiu_work.py LIBRARIES LAUNCHES [profiled].

Launches one kernel from two Python functions, one call in three from the
second. Prints "pid N rank R", then its account as JSON.
"""

import ctypes
import json
import os
import sys


class ControlBlock(ctypes.Structure):
    _fields_ = [("name", ctypes.c_char_p), ("bytes_in", ctypes.c_uint64), ("bytes_out", ctypes.c_uint64)]


class Record(ctypes.Structure):
    _fields_ = [("kind", ctypes.c_uint8)]


class Activities:
    """The activity API by its mangled names."""

    KINDS = (1, 2, 3, 4, 6)

    def __init__(self, path):
        self.library = ctypes.CDLL(path)
        self.buffers = []
        self.filled = []
        # Kept as long as the library may call them.
        self.requested = ctypes.CFUNCTYPE(
            None,
            ctypes.POINTER(ctypes.c_void_p),
            ctypes.POINTER(ctypes.c_size_t),
            ctypes.POINTER(ctypes.c_size_t),
        )(self.request)
        self.completed = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t)(
            self.complete
        )
        register = self.function("_Z31aiuptiActivityRegisterCallbacksPFvPPhPmS1_EPFvS_mmE")
        assert register(self.requested, self.completed) == 0
        enable = self.function("_Z20aiuptiActivityEnable19AIUpti_ActivityKind")
        for kind in self.KINDS:
            assert enable(kind) == 0

    def function(self, name):
        return getattr(self.library, name)

    def request(self, buffer, size, most):
        memory = ctypes.create_string_buffer(1 << 16)
        self.buffers.append(memory)
        buffer[0] = ctypes.addressof(memory)
        size[0] = len(memory)
        most[0] = 0

    def complete(self, buffer, _size, valid):
        self.filled.append((buffer, valid))

    def finish(self):
        """Counts of the records by kind."""
        disable = self.function("_Z21aiuptiActivityDisable19AIUpti_ActivityKind")
        for kind in self.KINDS:
            assert disable(kind) == 0
        assert self.function("_Z24aiuptiFlushAllActivitiesv")() == 0
        step = self.function("_Z27aiuptiActivityGetNextRecordPhmPP15AIUpti_Activity")
        step.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.POINTER(ctypes.POINTER(Record))]
        counts = {}
        for buffer, valid in self.filled:
            record = ctypes.POINTER(Record)()
            while step(buffer, valid, ctypes.byref(record)) == 0:
                kind = str(record.contents.kind)
                counts[kind] = counts.get(kind, 0) + 1
        return counts


def launch(flex, stream, name):
    block = ControlBlock(name, 0, 0)
    assert flex.aiuLaunchControlBlocks(stream, ctypes.byref(block), 1) == 0


def train_step(flex, stream):
    launch(flex, stream, b"python_kernel")


def evaluate(flex, stream):
    launch(flex, stream, b"python_kernel")


def main():
    libraries, launches = sys.argv[1], int(sys.argv[2])
    print(f"pid {os.getpid()} rank {os.environ.get('RANK', '0')}", flush=True)
    flex = ctypes.CDLL(os.path.join(libraries, "libflex.so"))
    flex.aiuLaunchControlBlocks.argtypes = [ctypes.c_uint64, ctypes.c_void_p, ctypes.c_uint32]
    flex.aiuScheduleWait.argtypes = [ctypes.c_uint64]
    stream = 77
    address = ctypes.c_uint64()
    assert flex.aiuMalloc(ctypes.byref(address), ctypes.c_uint64(1 << 20), 0) == 0
    profiled = sys.argv[3:] == ["profiled"]
    activities = Activities(os.path.join(libraries, "libaiupti.so")) if profiled else None
    counts = {"train_step": 0, "evaluate": 0}
    for i in range(launches):
        step = evaluate if i % 3 == 2 else train_step
        step(flex, stream)
        counts[step.__name__] += 1
    assert flex.aiuScheduleWait(stream) == 0
    records = activities.finish() if activities else {}
    print(json.dumps({"mode": "python", "launches": counts, "records": records}))


if __name__ == "__main__":
    main()
