"""A job of Python programs with region checkpoints: the last member is killed between two
checkpoints. The survivors divide the cells anew and go on from the last checkpoint."""

import array
import sys
import time

import outlast

CELLS = 1200
STEPS = 10


def part(rank, size):
    """The cells of a rank: where they begin and end."""
    return CELLS * rank // size, CELLS * (rank + 1) // size


def main():
    with outlast.join() as job, job.open(replicas=2) as store:
        regions = store.regions("cells", 8 * CELLS)
        last, announced = job.members - 1, False
        at = regions.restore()
        begin, end = part(at.rank, at.size)
        cells = array.array("d", [float(cell) for cell in range(begin, end)])
        step = 0
        while step < STEPS:
            try:
                regions.checkpoint(step, {"cells": cells}, b"step %d" % step)
                if step == 5 and job.me == last:
                    print("ready", flush=True)
                    time.sleep(30)  # this member is killed here
                    sys.exit(1)
                cells = array.array("d", [2 * cell for cell in cells])
                step += 1
            except outlast.MemberDied as death:
                assert death.code == 2 and step == 6, (step, death)
                at = regions.restore()
                assert (at.version, at.size) == (5, last) and at.note == b"step 5", at
                assert len(regions.owners()) == job.members
                begin, end = part(at.rank, at.size)
                cells, announced = array.array("d", bytes(8 * (end - begin))), True
                regions.read("cells", cells, offset=8 * begin)
                step = at.version
                cells = array.array("d", [2 * cell for cell in cells])
                step += 1
        assert announced and list(cells) == [cell * 2.0**STEPS for cell in range(begin, end)]
        regions.close()
    print("ok", flush=True)


main()
