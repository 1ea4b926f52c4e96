"""Python objects between ranks, as mpi4py sends them; prints what each rank sent to whom.

mpirun -n N python3 mpi_objects.py FOLDER"""

import collections
import sys

from mpi4py import MPI

comm = MPI.COMM_WORLD
rank, size = comm.Get_rank(), comm.Get_size()
sent = collections.Counter()


def send(thing, dest, tag, of=comm, name=None):
    sent[dest if name is None else name] += 1
    of.send(thing, dest=dest, tag=tag)


for step in range(5):
    if rank == 0:
        for other in range(1, size):
            send({"step": step, "for": other}, other, 11)
        got = [comm.recv(source=MPI.ANY_SOURCE) for _ in range(1, size)]
        assert sorted(of for of, _ in got) == list(range(1, size))
    else:
        task = comm.recv(source=0)
        assert task == {"step": step, "for": rank}
        send((rank, "x" * 1000 * rank), 0, 20 + step)

# What rank 0 took from anybody was of the steps, and of nothing that comes now.
comm.Barrier()

# Begun, and waited for later.
right, left = (rank + 1) % size, (rank - 1) % size
request = comm.isend(list(range(rank)), dest=right, tag=3)
sent[right] += 1
assert comm.irecv(source=left, tag=3).wait() == list(range(left))
request.wait()

# Ranks of another communicator, and buffers.
half = comm.Split(rank % 2, rank)
if half.Get_rank() == 0 and half.Get_size() > 1:
    send("first", 1, 0, half, rank + 2)
elif half.Get_rank() == 1:
    assert half.recv() == "first"
buffer = bytearray(64)
if rank == 1:
    sent[0] += 1
    comm.Send(buffer, dest=0)
elif rank == 0:
    comm.Recv(buffer, source=1)
assert comm.bcast(rank, root=1) == 1

with open(f"{sys.argv[1]}/{rank}.sent", "w") as log:
    for to, count in sorted(sent.items()):
        print(to, count, file=log)
