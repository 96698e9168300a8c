"""An mpi4py program that opens a store as a guest, loses a rank, and goes on."""

import os
import signal
import time

from mpi4py import MPI  # initializes MPI with MPI_THREAD_MULTIPLE; errors become exceptions

import outlast

world = MPI.COMM_WORLD
rank, size = world.Get_rank(), world.Get_size()
assert world.allreduce(1) == size
for wrong in (5, MPI.GROUP_EMPTY):
    try:
        outlast.join(comm=wrong)
        raise AssertionError("this is no communicator")
    except TypeError:
        pass
# The members are in the order of the ranks of the communicator, here reversed.
reversed_world = world.Split(0, size - rank)
job = outlast.join(comm=reversed_world)
assert (job.me, job.members) == (size - 1 - rank, size)
store = job.open()
store[f"result/{rank}"] = b"of rank %d" % rank
world.Barrier()
store.add("through", 1)
while rank == size - 1:  # a death inside a collective call would be the program's affair
    if store.add("through", 0) == size:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(0.001)
until = time.monotonic() + 20
while job.living == size and time.monotonic() < until:
    time.sleep(0.005)
assert job.living == size - 1
for other in range(size):
    assert store[f"result/{other}"] == b"of rank %d" % other
store.close()
job.leave()
print("ok", flush=True)
os._exit(0)  # without MPI_Finalize, which mpi4py would call
