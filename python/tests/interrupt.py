"""Ctrl-C ends waits: for a key, for a lock, for the bell, for the end of a transaction, and for
members that do not call. The second member of the job makes none of the calls that the first member
waits in."""

import os
import signal
import tempfile
import threading
import time

import outlast


def interrupt(what, call):
    """Expects that a signal ends a wait of 20 s soon. The bound leaves room for a busy machine."""
    timer = threading.Timer(0.2, lambda: os.kill(os.getpid(), signal.SIGINT))
    began = time.monotonic()
    timer.start()
    try:
        call()
    except KeyboardInterrupt:
        took = time.monotonic() - began
        assert 0.1 < took < 10, (what, took)
    else:
        raise AssertionError(f"{what} was not interrupted")
    finally:
        timer.join()


def first(job, store, comm, regions, strict):
    interrupt("wait", lambda: store.wait("never", 20))
    interrupt("wait for a member", lambda: store.wait("never", 20, member=1))
    with store.lock("held", 1):
        interrupt("lock", store.lock("held", 20).__enter__)
    assert store.wait("never", 0.001) is None
    # A handler that returns does not end the wait.
    caught = []
    signal.signal(signal.SIGUSR1, lambda *_: caught.append(1))
    threading.Timer(0.1, lambda: os.kill(os.getpid(), signal.SIGUSR1)).start()
    assert store.wait("never", 0.5) is None and caught == [1]
    # An exception of a handler is the exception of the wait, also in a transaction.
    signal.signal(signal.SIGUSR1, lambda *_: 1 / 0)
    threading.Timer(0.1, lambda: os.kill(os.getpid(), signal.SIGUSR1)).start()
    try:
        with store.transaction() as tx:
            tx["half"] = b"done"
            store.wait("never", 20)
    except ZeroDivisionError:
        assert "half" not in store
    else:
        raise AssertionError("the handler did not end the wait")

    def park():
        while True:  # the bell may ring for other reasons
            job.park(job.bell(), 20)

    interrupt("park", park)
    interrupt("barrier", job.barrier)
    interrupt("open", lambda: job.open(name="mine alone"))
    interrupt("regions", lambda: store.regions("mine alone"))
    interrupt("checkpoint", lambda: regions.checkpoint(1, {}))
    interrupt("duplicate", comm.duplicate)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        snapshots = store.snapshots(folder)
        interrupt("snapshot", snapshots.take)
    strict.revoke()
    interrupt("recover", lambda: strict.recover(lambda tx, deaths: None))
    # A transaction that is always in conflict.
    store["contended"] = b""

    def contend(tx):
        tx["contended"]
        store["contended"] = b""
        tx["copy"] = b""

    interrupt("transact", lambda: store.transact(contend, seconds=20))
    store["over"] = b""
    interrupt("close", store.close)


def main():
    # A shell starts background commands with SIGINT ignored, and Python leaves that as it is.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    job = outlast.join()
    store, strict = job.open(), job.open(name="strict", global_mode=True)
    comm, regions = job.comm().duplicate(), store.regions("both")
    if job.me == 0:
        first(job, store, comm, regions, strict)
        # The call goes on in the background; this member ends without it.
        print("ok", flush=True)
        os._exit(0)
    assert store.wait("over", 60) is not None
    while job.living == 2:
        time.sleep(0.01)
    print("ok", flush=True)
    os._exit(0)


main()
