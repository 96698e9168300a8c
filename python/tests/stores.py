"""A job of Python programs that open stores one after another, and two stores at a time. The last
member is killed between a close and the next open."""

import sys
import time

import outlast


def expect(error, call):
    try:
        call()
    except error as found:
        return found
    raise AssertionError(f"expected {error.__name__}")


def meet(job, store):
    """Waits until all members that are not known to be dead have called it."""
    here = store.add("here", 1)
    while here < job.living:
        time.sleep(0.001)
        here = store.add("here", 0)


def main():
    with outlast.join() as job:
        for step in range(3):
            with job.open(replicas=2) as store, job.open(replicas=2, name="second") as second:
                meet(job, second)
                assert "key" not in second
                # A death while this member opened a store is news: the dead member may have put.
                for opened in store, second:
                    known = set(job.dead)
                    assert known <= {death.member for death in opened.deaths()}
                store["key"], second[f"key/{job.me}"] = b"first", b"%d" % step
                assert store["key"] == b"first" and second[f"key/{job.me}"] == b"%d" % step
                error = expect(outlast.AlreadyOpen, lambda: job.open(name="second"))
                assert error.code == -18 and "second" in str(error)
                assert second[f"key/{job.me}"] == b"%d" % step
            if step == 1 and job.me == job.members - 1:
                time.sleep(0.3)  # the other members are opening the stores again
                print("ready", flush=True)
                time.sleep(30)  # this member is killed before it opens the stores again
                sys.exit(1)
    print("ok", flush=True)


main()
