"""Measures what Python adds to a call, against the time of the call in Rust in the same run.

    python3 speed.py [ROUNDS]

For small values the reference is what the store itself measures: it times a sample of its calls in
Rust (Store.stats, which rounds up by at most a quarter). For 8 MiB it is a memcpy of 8 MiB between
two buffers of this process, which no call in Rust can beat. The times of Python are medians over
loops of 100 calls, or over single calls of 8 MiB. Build the package with optimization:
pip install ./python.
"""

import statistics
import sys
import time

import outlast

SMALL, LARGE = bytes(64), 8 << 20


def median_of(loops, calls, call):
    """Seconds per call: the median over loops."""

    def loop():
        began = time.perf_counter()
        for _ in range(calls):
            call()
        return (time.perf_counter() - began) / calls

    return statistics.median(loop() for _ in range(loops))


def measure_small(store, call, kind):
    """Seconds in Python and in Rust; Python's loop and its call of a function do not count."""
    in_python = median_of(200, 100, call) - median_of(200, 100, lambda: None)
    return in_python, store.stats()[kind]["p50"]


def put(store):
    def call():
        store["key"] = SMALL

    return measure_small(store, call, "put")


def get(store):
    store["key"] = SMALL
    return measure_small(store, lambda: store["key"], "get")


def put_by_handle(store):
    handle = store.handle("key")
    return measure_small(store, lambda: handle.put(SMALL), "put")


def get_large(store):
    source, into = bytes(range(256)) * (LARGE // 256), bytearray(LARGE)
    store["key"], view = source, memoryview(into)

    def copy():
        view[:] = source

    pairs = [
        (median_of(1, 1, lambda: store.get_into("key", into)), median_of(1, 1, copy))
        for _ in range(60)
    ]
    assert into == source
    return [statistics.median(times) for times in zip(*pairs)]


def put_large(store):
    source, into = bytearray(LARGE), memoryview(bytearray(LARGE))
    store["key"] = source

    def copy():
        into[:] = source

    pairs = [
        (median_of(1, 1, lambda: store.put("key", source)), median_of(1, 1, copy))
        for _ in range(60)
    ]
    return [statistics.median(times) for times in zip(*pairs)]


def main():
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    print(f"{'call':<26}{'Python':>12}{'reference':>12}{'added':>12}{'ratio':>8}")
    with outlast.join() as job:
        for measurement in (put, get, put_by_handle, get_large, put_large):
            found = []
            for _ in range(rounds):
                with job.open(replicas=1) as store:  # a new store has no samples
                    found.append(measurement(store))
            in_python = statistics.median(pair[0] for pair in found) * 1e6
            reference = statistics.median(pair[1] for pair in found) * 1e6
            added, ratio = in_python - reference, in_python / reference
            figures = f"{in_python:>9.2f} us{reference:>9.2f} us{added:>9.2f} us{ratio:>8.2f}"
            print(f"{measurement.__name__.replace('_', ' '):<26}{figures}")


main()
