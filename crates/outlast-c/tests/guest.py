# A program over mpi4py with a store as its guest, through the C library: argument 1 is its path. Loses a rank, and goes on.
import ctypes
import os
import signal
import sys
import time

from mpi4py import MPI  # initializes MPI with MPI_THREAD_MULTIPLE, and has errors raised as exceptions

library = ctypes.CDLL(sys.argv[1])
library.outlast_error.restype = ctypes.c_char_p


def check(status):
    if status != 0:
        sys.exit(f"status {status}: {library.outlast_error().decode()}")


world = MPI.COMM_WORLD
rank, size = world.Get_rank(), world.Get_size()
assert world.allreduce(1) == size
job, store = ctypes.c_void_p(), ctypes.c_void_p()
check(library.outlast_join_mpi(None, 0, ctypes.byref(job)))
check(library.outlast_open(job, None, ctypes.byref(store)))


def put(key, value):
    check(library.outlast_put(store, key, ctypes.c_size_t(len(key)), value, ctypes.c_size_t(len(value)), None))


def get(key):
    buffer, length = ctypes.create_string_buffer(100), ctypes.c_size_t()
    key_len = ctypes.c_size_t(len(key))
    check(library.outlast_get(store, key, key_len, buffer, ctypes.c_size_t(100), ctypes.byref(length), None))
    return buffer.raw[: length.value]


put(b"result/%d" % rank, b"of rank %d" % rank)
world.Barrier()
if rank == size - 1:
    os.kill(os.getpid(), signal.SIGKILL)
until = time.monotonic() + 20
while library.outlast_living(job) == size and time.monotonic() < until:
    time.sleep(0.005)
assert library.outlast_living(job) == size - 1
for other in range(size):
    assert get(b"result/%d" % other) == b"of rank %d" % other
check(library.outlast_close(store))
check(library.outlast_leave(job))
print("ok", flush=True)
os._exit(0)  # without MPI_Finalize, which mpi4py would call
