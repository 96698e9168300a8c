"""The heat equation over mpi4py: the ranks divide the rows of a grid and exchange the rows at their
edges. The program outlasts the death of ranks: the survivors revoke and shrink the communicator,
restore the last checkpoint, divide the rows anew and go on.

    mpirun --with-ft ulfm -n 4 python3 heat.py 400          each rank prints a checksum
    mpirun --with-ft ulfm -n 4 python3 heat.py 400 2 130    rank 2 dies in step 130; an equal one
"""

import hashlib
import os
import signal
import sys
from array import array

from mpi4py import MPI  # initializes MPI with MPI_THREAD_MULTIPLE; errors become exceptions

import outlast

ROWS, WIDTH = 48, 64
ROW = WIDTH * 8  # bytes


def share(rank, size):
    """The rows of a rank: the first, and the row after the last."""
    return ROWS * rank // size, ROWS * (rank + 1) // size


def start(first, end):
    rows = range(first, end)
    return array("d", (row * 37 % 101 + at * 0.5 for row in rows for at in range(WIDTH)))


sends = []  # each request of a send that was not waited for, with its bytes


def exchange(comm, cells, earlier):
    """The row of the rank above and that of the rank below, and the sends of this step.

    Open MPI 5.0.11 ends the program if a send fails, by a death or a revocation, after its request
    was freed, and waiting frees a request. So the sends of a step (`earlier`) are waited for in the
    next step, when the rows of the neighbours say that the neighbours have them, and never after an
    error.
    """
    rank, size = comm.Get_rank(), comm.Get_size()
    above = rank - 1 if rank > 0 else MPI.PROC_NULL
    below = rank + 1 if rank < size - 1 else MPI.PROC_NULL
    from_above, from_below = array("d", bytes(ROW)), array("d", bytes(ROW))
    receives, now = [], []
    try:
        receives.append(comm.Irecv(from_above, above))
        receives.append(comm.Irecv(from_below, below))
        for edge, to in ((cells[:WIDTH], above), (cells[-WIDTH:], below)):
            now.append((comm.Isend(edge, to), edge))
        MPI.Request.Waitall(receives)
    except MPI.Exception:
        sends.extend(earlier + now)
        comm.Revoke()  # ends the waits of all ranks, and so the receives
        for receive in receives:
            try:
                receive.Wait()  # it must not write into bytes that are gone
            except MPI.Exception:
                pass
        raise
    for request, _ in earlier:
        request.Wait()
    return from_above, from_below, now


def save(comm, saved, version, cells):
    """Saves the cells as a version. All ranks agree before it that no rank has died, so that no
    rank waits in checkpoint for a rank that waits in MPI."""
    if not comm.Agree(1):
        raise outlast.MemberDied("a rank died")
    saved.checkpoint(version, {"cells": cells})


def agree_to_recover(comm):
    try:
        comm.Agree(0)
    except MPI.Exception:  # there are failures, of course
        pass


def advance(cells, above, below, first):
    """The rows of the next step. Cells at the edges of the grid stay as they are."""
    rows = len(cells) // WIDTH
    all_rows = above + cells + below
    following = array("d", cells)
    for row in range(rows):
        if first + row in (0, ROWS - 1):
            continue
        for at in range((row + 1) * WIDTH + 1, (row + 2) * WIDTH - 1):
            here = all_rows[at]
            around = all_rows[at - 1] + all_rows[at + 1]
            around += all_rows[at - WIDTH] + all_rows[at + WIDTH]
            following[at - WIDTH] = here + 0.1 * (around - 4 * here)
    return following


def die_if_named(step):
    """Dies if the arguments name this rank of COMM_WORLD, followed by this step."""
    named = [int(argument) for argument in sys.argv[2:]]
    if (MPI.COMM_WORLD.Get_rank(), step) in zip(named[::2], named[1::2]):
        os.kill(os.getpid(), signal.SIGKILL)


def solve(comm, saved, version, steps):
    """Computes with the ranks of the communicator, from the last checkpoint on."""
    first, end = share(comm.Get_rank(), comm.Get_size())
    if version is None:
        cells = start(first, end)
    else:
        cells = array("d", bytes((end - first) * ROW))
        saved.read("cells", cells, offset=first * ROW)
    sent = []
    for step in range(version or 0, steps):
        if step % 20 == 0:
            save(comm, saved, step, cells)
        die_if_named(step)
        try:
            above, below, sent = exchange(comm, cells, sent)
        except MPI.Exception:
            agree_to_recover(comm)  # with the ranks that are in `save` or come to it
            raise
        cells = advance(cells, above, below, first)
    sends.extend(sent)
    save(comm, saved, steps, cells)


def main():
    steps = int(sys.argv[1])
    comm = MPI.COMM_WORLD
    job = outlast.join(comm=comm)
    store = job.open(allow_fewer=True)
    saved = store.regions("heat", ROWS * ROW, set=4, lose=2, piece=1024)
    at, before = saved.restore(), 0
    while True:
        try:
            solve(comm, saved, at.version, steps)
            break
        except (MPI.Exception, outlast.MemberDied):
            comm.Revoke()
            comm = comm.Shrink()
            at = saved.restore()
            before, now = at.size + comm.Get_size(), before
            if before == now:
                raise  # no rank died: the error has another reason
    cells = bytearray(ROWS * ROW)
    saved.read("cells", cells)
    print(hashlib.sha256(cells).hexdigest()[:16], flush=True)
    saved.close()
    store.close()
    job.leave()
    # After a death MPI_Finalize may hang, which mpi4py would call. No rank comes here before all
    # ranks have closed the store.
    if comm != MPI.COMM_WORLD:
        os._exit(0)
    for request, _ in sends:
        request.Wait()


main()
