"""A parameter sweep that outlasts its workers.

    outlast run -n 4 python3 sweep.py POINTS [VICTIM]

Each point of the sweep is simulated by the member that claims it, and counted once. If a member
dies, its heir gives the points back that the dead member had claimed and not finished, and any
member claims them again. All survivors print the sum of all results. VICTIM is a member that claims
the first point and kills itself in the middle of it.
"""

import math
import os
import signal
import struct
import sys

import outlast


def simulate(damping):
    """The energy of a damped pendulum after 2000 steps."""
    angle, speed, step = 1.0, 0.0, 0.005
    for _ in range(2000):
        speed -= (math.sin(angle) + damping * speed) * step
        angle += speed * step
    return speed * speed / 2 + 1 - math.cos(angle)


def claim(store, candidates):
    """Claims a point for this member; None if other members have claimed all candidates."""
    while candidates:
        point = candidates.pop()
        try:
            store.put_if(f"claim/{point}", b"")
            return point
        except outlast.Conflict:  # another member was faster
            pass
    return None


def finish(store, point, result):
    """Keeps a result and counts it: both happen, or none of it, whenever this member dies."""

    def body(tx):
        tx[f"result/{point}"] = struct.pack("d", result)
        tx.add("finished", 1)

    store.transact(body)


def give_back(store, me):
    """Gives back what dead members have claimed and not finished, if this member is their heir."""
    for death in store.deaths():
        if death.heir == me:
            for key in store.keys_of(death.member):
                if key.startswith(b"claim/") and key.replace(b"claim", b"result") not in store:
                    store.pop(key, None)


def main():
    points = int(sys.argv[1])
    victim = int(sys.argv[2]) if len(sys.argv) > 2 else None
    with outlast.join() as job, job.open() as store:
        if victim not in (None, job.me):
            store.wait("victim at work", 30)
        candidates = list(range(points))
        while store.add("finished", 0) < points:
            give_back(store, job.me)
            point = claim(store, candidates)
            if point is None:  # the last points are simulated elsewhere, or will be given back
                store.wait("over", 0.05)
                claimed = store.scan("claim/")
                candidates = [p for p in range(points) if b"claim/%d" % p not in claimed]
                continue
            result = simulate(point / points)
            if job.me == victim:
                store["victim at work"] = b""
                os.kill(os.getpid(), signal.SIGKILL)
            finish(store, point, result)
        store["over"] = b""
        results = store.get_all(f"result/{point}" for point in range(points))
        total = sum(struct.unpack("d", result)[0] for result in results)
        print(f"{total!r} is the sum of {points} points", flush=True)


main()
