"""Speaks Kineto's on-demand protocol as a program with PyTorch does, and as none would.

Synthetic: written from the protocol (dynolog's ipcfabric/FabricManager.h, Kineto's
IpcFabricConfigClient.cpp), for faults that PyTorch does not have. Usage:
kineto_client.py MODE. Prints `ok MODE` if the daemon did what is right.
"""

import os
import socket
import struct
import subprocess
import sys
import time

DAEMON = "\0dynolog\0"


def message(kind, payload, size=None):
    size = len(payload) if size is None else size
    return struct.pack("=Q32s", size, kind) + payload


def request(kind=2, pids=None):
    pids = [os.getpid(), os.getppid()] if pids is None else pids
    return message(b"req", struct.pack(f"=iiq{len(pids)}i", kind, len(pids), 0, *pids))


class Client:
    def __init__(self):
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(f"\0dynoconfigclient-test-{os.getpid()}-{id(self)}\0")
        self.socket.settimeout(5)

    def send(self, datagram):
        self.socket.sendto(datagram, DAEMON)

    def answer(self):
        """The configuration that the daemon sent, as a dictionary."""
        datagram = self.socket.recv(65536)
        size, kind = struct.unpack_from("=Q32s", datagram)
        assert kind.rstrip(b"\0") == b"req", kind
        assert size == len(datagram) - 40, (size, len(datagram))
        lines = datagram[40:].decode().splitlines()
        return dict(line.split("=", 1) for line in lines)

    def ask(self, kind=2):
        self.send(request(kind))
        return self.answer()

    def file(self, config):
        """Where Kineto writes what this process was asked for."""
        return config["ACTIVITIES_LOG_FILE"].replace(".json", f"_{os.getpid()}.json")


def check(config):
    assert config["ACTIVITIES_LOG_FILE"].startswith("/tmp/"), config
    assert 0 < int(config["ACTIVITIES_DURATION_MSECS"]) <= 60_000, config
    assert config["PROFILE_WITH_STACK"] == "false", config
    assert os.environ["KINETO_USE_DAEMON"] == "1"
    return config


def wait_gone(path):
    """Waits until the daemon has taken a file."""
    for _ in range(2000):
        if not os.path.lexists(path):
            return
        time.sleep(0.005)
    raise TimeoutError(path)


def garbage(client):
    good = request()
    client.send(b"")
    client.send(b"req")
    for length in range(len(good)):
        client.send(good[:length])
    client.send(good + b"\0")
    client.send(bytes(65536))
    for size in (0, 1, 2**63, 2**64 - 1, 2**64 - 40):
        client.send(message(b"req", good[40:], size))
    for kind in (b"", b"xyz", b"r" * 32, b"\xff" * 32):
        client.send(message(kind, good[40:]))
    for count in (-1, 1, 3, 2**31 - 1, -(2**31)):
        client.send(message(b"req", struct.pack("=iiqii", 2, count, 0, 1, 2)))
    client.send(message(b"ctxt", struct.pack("=iiq", 0, os.getpid(), 0)))
    welcome = client.socket.recv(4096)
    assert welcome == message(b"ctxt", struct.pack("=i", 1)), welcome
    # Descriptors that are sent with a request are not kept.
    rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack("=3i", 0, 1, 2))
    client.socket.sendmsg([request(0)], [rights], 0, DAEMON)
    assert client.answer() == {}
    # None of it was taken for a request, and a real one is answered still.
    check(client.ask())


def hundreds(client):
    for _ in range(500):
        assert client.ask(kind=0) == {}
    check(client.ask())
    for _ in range(500):
        assert client.ask() == {}, "asked twice at once"


def silent(client):
    check(client.ask())


def dies(client):
    check(client.ask())
    sys.stdout.write("ok dies\n")
    sys.stdout.flush()
    os.kill(os.getpid(), 9)


def no_trace(client):
    path = client.file(check(client.ask()))
    with open(path + ".tmp", "w") as file:
        file.write('{"traceEvents": no')
    os.rename(path + ".tmp", path)
    wait_gone(path)


def link(client):
    path = client.file(check(client.ask()))
    os.symlink("/etc/passwd", path)
    wait_gone(path)


def pipe(client):
    path = client.file(check(client.ask()))
    os.mkfifo(path)
    wait_gone(path)


def large(client):
    path = client.file(check(client.ask()))
    with open(path + ".tmp", "w") as file:
        file.truncate(1 << 42)
    os.rename(path + ".tmp", path)
    wait_gone(path)


def stranger(client):
    # A process of this recording that is another user's is asked in a directory of its own.
    own = check(client.ask())["ACTIVITIES_LOG_FILE"]
    code = (
        "import os, socket, struct, subprocess, sys, time\n"
        f"source = open({__file__!r}).read()\n"
        "sys.argv[1] = 'theirs'; os.setgid(65534); os.setuid(65534); exec(source)"
    )
    other = subprocess.run(
        [sys.executable, "-c", code, "x"], capture_output=True, text=True, check=True
    )
    theirs = other.stdout.splitlines()[0]
    assert os.path.dirname(theirs) != os.path.dirname(own), (own, theirs)


def theirs(client):
    path = check(client.ask())["ACTIVITIES_LOG_FILE"]
    print(path)
    with open(path, "w") as file:
        file.write("mine")
    assert os.stat(os.path.dirname(path)).st_mode & 0o777 == 0o700


def outside(client):
    """Not of the recording: it is answered, and never asked."""
    for _ in range(20):
        assert client.ask() == {}


mode = sys.argv[1]
globals()[mode](Client())
print("ok", mode, flush=True)
