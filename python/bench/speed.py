"""Measures what Python adds to a call, against the time of the call in Rust in the same run.

    python3 speed.py [ROUNDS]

The store times a sample of its calls in Rust (Store.stats), without Python. The time of a call in
Python is that of a loop, less that of an empty loop. Each round has both; the table has the medians
over the rounds. Build the package with optimization: pip install ./python.
"""

import statistics
import sys
import time

import outlast

SMALL, LARGE = bytes(64), 8 << 20


def per_call(count, call):
    """Seconds per call in a loop, less the loop itself."""

    def run(function):
        began = time.perf_counter()
        for _ in range(count):
            function()
        return time.perf_counter() - began

    return max(run(call) - run(lambda: None), 0.0) / count


def measure(job, count, prepare, call, kind):
    """Seconds in Python and in Rust, in a store of its own, which begins with no samples."""
    with job.open(replicas=1) as store:
        call = prepare(store, call)
        call()
        in_python = per_call(count, call)
        return in_python, store.stats()[kind]["p50"]


def prepare_put(store, call):
    return lambda: call(store)


def prepare_get(store, call):
    store["key"] = SMALL
    return lambda: call(store)


def prepare_handle(store, call):
    handle = store.handle("key")
    handle.put(SMALL)
    return lambda: call(handle)


def prepare_large(store, call):
    handle, into = store.handle("key"), bytearray(LARGE)
    handle.put(into)
    return lambda: call(handle, into)


def put(store):
    store["key"] = SMALL


MEASUREMENTS = [
    ("put 64 B", 20000, prepare_put, put, "put"),
    ("get 64 B", 20000, prepare_get, lambda store: store["key"], "get"),
    ("put 64 B by handle", 20000, prepare_handle, lambda handle: handle.put(SMALL), "put"),
    ("get 8 MiB into a buffer", 200, prepare_large, lambda h, into: h.get_into(into), "get"),
]


def main():
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    print(f"{'call':<26}{'Python':>12}{'Rust':>12}{'added':>12}{'ratio':>8}")
    with outlast.join() as job:
        for name, *measurement in MEASUREMENTS:
            found = [measure(job, *measurement) for _ in range(rounds)]
            in_python = statistics.median(pair[0] for pair in found) * 1e6
            in_rust = statistics.median(pair[1] for pair in found) * 1e6
            added, ratio = in_python - in_rust, in_python / in_rust
            figures = f"{in_python:>9.2f} us{in_rust:>9.2f} us{added:>9.2f} us{ratio:>8.2f}"
            print(f"{name:<26}{figures}")


main()
