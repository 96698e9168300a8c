"""Bad input: closed stores, ended members, forked children, exceptions in transactions, null
characters, wrong types. Each is a defined error, and changes nothing."""

import gc
import os
import sys
import threading

import outlast


def expect(error, call, code=None):
    try:
        call()
    except error as found:
        assert type(found) is error or code is None, found
        assert code is None or found.code == code, (found.code, found)
        return found
    raise AssertionError(f"expected {error.__name__}")


def check_types(job, store):
    store["key"] = b"value"
    version = store.get_versioned("key")[1]
    for call in [
        lambda: store.add("number", 1.5),
        lambda: store.add("number", "1"),
        lambda: store.put_if("key", b"x", "version"),
        lambda: store.wait("key", "1"),
        lambda: store.wait("key", 1, newer_than=5),
        lambda: store.wait("key", 1, member="one"),
        lambda: store.keys_of("one"),
        lambda: store.get_into("key"),
        lambda: store.transact(5),
        lambda: store.snapshots(5),
        lambda: store.regions(5),
        lambda: store.images(5),
        lambda: store.on_loss("no function"),
        lambda: store.regions("r").checkpoint(1, [("cells", b"")]),
        lambda: job.open(replicas="two"),
        lambda: job.open(name=b"bytes"),
        lambda: job.open(unknown=1),
        lambda: outlast.join(time_limit="long"),
        lambda: outlast.join(30),
        lambda: outlast.Store(job=5),
    ]:
        expect(TypeError, call)
    for call in [
        lambda: store.add("number", 1 << 63),
        lambda: store.keys_of(-1),
        lambda: store.put_if("key", b"x", (-1, 0)),
        lambda: job.open(replicas=-1),
        lambda: outlast.join(segment_limit=-1),
    ]:
        expect(OverflowError, call)
    for seconds in [-1, float("nan"), -float("inf")]:
        expect(ValueError, lambda: store.wait("none", seconds))
        expect(ValueError, lambda: store.lock("none", seconds))
        expect(ValueError, lambda: outlast.join(time_limit=seconds))
    assert store.wait("key", float("inf")) == b"value"
    expect(ValueError, lambda: store.put_if("key", b"x", (1, 2, 3)))
    expect(UnicodeEncodeError, lambda: store["\ud800"])
    assert store["key"] == b"value" and store.get_versioned("key")[1] == version
    assert "number" not in store


def check_limits(job, store):
    for key in [b"", "", b"k" * 1025, b"\0outlast/own"]:
        expect(outlast.OutlastError, lambda: store.put(key, b"x"), -1)
    for key in [b"", b"k" * 1025]:
        expect(outlast.OutlastError, lambda: store.replicas_of(key), -1)
        expect(outlast.OutlastError, lambda: store.partition_of(key), -1)
    store[b"k" * 1024] = b"x"
    for number in [1, 1 << 31]:
        expect(outlast.OutlastError, lambda: store.keys_of(number), -1)
        expect(outlast.OutlastError, lambda: store.heir_of(number), -1)
        expect(outlast.OutlastError, lambda: store.wait("none", 0.001, member=number), -1)
        expect(outlast.OutlastError, lambda: job.domain(number), -1)
    expect(outlast.OutlastError, lambda: job.open(replicas=5, name="five"), -1)
    expect(outlast.OutlastError, lambda: job.open(name="n" * 256), -1)
    if "OUTLAST_JOB" in os.environ:  # otherwise a second join makes another job of one member
        assert "already joined" in str(expect(outlast.NotJoined, outlast.join, -2))
    expect(outlast.OutlastError, lambda: store.recover(lambda tx, deaths: None), -1)
    expect(outlast.OutOfMemory, lambda: store.put("vast", bytearray(1 << 28)), -9)
    assert "vast" not in store


def check_null_characters(job, store):
    for text in ["\0", "a\0b", "a\0"]:
        store[text] = text.encode() * 2
        assert store[text] == text.encode() * 2 and text.encode() in store.scan(text)
        with store.transaction() as tx:
            assert tx[text] == text.encode() * 2
            tx[text] = b"\0"
        assert store[text] == b"\0"
        with store.lock(f"lock/{text}", 1):
            pass
    assert store.get("a") is None
    with job.open(name="with\0null") as named:
        assert named.name == "with\0null"


def check_transactions(store):
    store["kept"] = b"before"

    def fail(tx):
        tx["kept"] = b"after"
        tx.add("count", 1)
        del tx["key"]
        raise ZeroDivisionError

    expect(ZeroDivisionError, lambda: store.transact(fail))
    tx = store.transaction()
    tx["kept"] = b"after"
    tx.abort()
    expect(outlast.OutlastError, lambda: tx.get("kept"), -7)
    expect(outlast.OutlastError, tx.commit, -7)
    assert store["kept"] == b"before"
    tx = store.transaction()
    tx["kept"] = b"after"
    del tx  # a transaction that is dropped is aborted
    gc.collect()
    with store.transaction() as tx:
        pass
    expect(outlast.OutlastError, lambda: tx.add("count", 1), -7)
    assert store["kept"] == b"before" and "count" not in store and "key" in store


def check_conflicts(store):
    # Another call changes both keys between two reads: the function is run again, and the
    # exception that follows from values which never existed together does not count.
    store["other"] = b"before"
    tries = []

    def body(tx):
        kept = tx["kept"]
        if not tries:
            store["kept"] = store["other"] = b"changed"
        tries.append((kept, tx["other"]))
        if tries[-1] != (b"changed", b"changed"):
            raise ZeroDivisionError
        tx["copy"] = kept
        return kept

    assert store.transact(body) == b"changed" and tries[0] == (b"before", b"changed")
    assert store["copy"] == b"changed"

    def contend(tx):
        tx["kept"]
        store["kept"] = b"again"
        tx["copy"] = b"never"

    expect(outlast.Aborted, lambda: store.transact(contend, seconds=0), -6)
    assert store["copy"] == b"changed"
    expect(outlast.OutlastError, lambda: store.transact(lambda tx: store.transact(len)), -15)
    kept = []
    store.transact(kept.append)
    expect(outlast.OutlastError, lambda: kept[0].get("kept"), -7)
    stale = store.transaction()
    assert stale["kept"] == b"again" and "none" not in stale and stale.get("none", 1) == 1
    store["kept"] = b"newer"
    stale["copy"] = b"stale"
    expect(outlast.Aborted, stale.commit, -6)
    with store.transaction() as tx:
        version = store.get_versioned("kept")[1]
        tx.require("kept", version)
        expect(outlast.Conflict, lambda: tx.require("kept"), -5)
        expect(KeyError, lambda: tx["none"])
        expect(TypeError, lambda: tx.add("count", "one"))


def check_fork(job, store):
    """A child is no member: its calls fail at once, and the parent goes on."""
    handle, comm, tx = store.handle("forked"), job.comm(), store.transaction()
    window = comm.window(64, locks=False)
    regions, images = store.regions("forked", 1 << 16), store.images("forked", 1 << 16)
    tx["forked"] = b"x"
    pin = store.pin("kept")
    child = os.fork()
    if child == 0:
        status = 1
        try:
            calls = [
                lambda: store.put("forked", b"x"),
                lambda: store["kept"],
                lambda: store.scan(),
                lambda: store.wait("kept", 5),
                lambda: store.lock("forked", 5).__enter__(),
                lambda: store.transact(lambda tx: tx.add("forked", 1)),
                tx.commit,
                pin.get,
                lambda: handle.put(b"x"),
                handle.get,
                lambda: comm.send(0, b"x"),
                comm.receive,
                comm.barrier,
                lambda: window.put(0, 0, b"x"),
                lambda: window.get(0, 0, 1),
                lambda: regions.checkpoint(1, {}),
                regions.restore,
                lambda: images.save("image", b"x"),
                lambda: images.load("image"),
                job.barrier,
                lambda: job.fence(0, 5),
                lambda: job.ring(0),
                lambda: job.open(name="forked"),
            ]
            failed = [str(expect(outlast.OutlastError, call, -19)) for call in calls]
            status = 0 if all("forked" in message for message in failed) else 2
            if status:
                print(failed, flush=True)
            store.close()  # in the child alone
        except BaseException as error:
            print(repr(error), flush=True)
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert "forked" not in store and store["kept"] == b"newer"
    assert comm.probe() is None and regions.restore().version is None
    assert images.load("image") is None and window.get(0, 0, 1) == b"\0"
    tx.commit()
    assert store.pop("forked") == b"x"
    pin.close()
    for ended in (window, regions, images):
        ended.close()


def check_lock_is_released(store):
    """Other Python threads run while a call waits."""
    threading.Timer(0.05, lambda: store.put("late", b"here")).start()
    assert store.wait("late", 20) == b"here"
    held, done = store.lock("shared", 1), threading.Event()
    held.__enter__()

    def take():
        with store.lock("shared", 20):
            done.set()

    thread = threading.Thread(target=take)
    thread.start()
    assert not done.wait(0.05)
    held.__exit__(None, None, None)
    assert done.wait(20)
    thread.join()
    expect(outlast.OutlastError, lambda: held.__exit__(None, None, None), -7)


def check_closed(job, store):
    handle, tx, batch = store.handle("kept"), store.transaction(), store.batch()
    store.close()
    for call in [
        lambda: store["kept"],
        lambda: store.put("kept", b"x"),
        lambda: store.update(kept=b"x"),
        lambda: "kept" in store,
        lambda: len(store),
        lambda: list(store),
        lambda: store.wait("kept", 1),
        lambda: store.lock("kept", 1),
        lambda: store.handle("kept"),
        lambda: store.deaths(),
        lambda: store.heir_of(0),
        lambda: store.is_revoked,
        lambda: store.stats(),
        lambda: store.transact(lambda tx: None),
        lambda: store.regions("state"),
        store.close,
        handle.get,
        lambda: handle.put(b"x"),
        lambda: tx.get("kept"),
        lambda: batch.__setitem__("kept", b"x"),
    ]:
        expect(outlast.Closed, call, -12)


def check_left(job):
    store, comm = job.open(), job.comm()
    store["key"] = b"value"
    handle, pin, tx = store.handle("key"), store.pin("key"), store.transaction()
    window = comm.window(64, locks=False)
    regions, images = store.regions("left", 1 << 16), store.images("left", 1 << 16)
    job.leave()
    for call in [
        lambda: store["key"],
        lambda: store.put("key", b"x"),
        lambda: len(store),
        lambda: handle.put(b"x"),
        pin.get,
        lambda: tx.get("key"),
        lambda: comm.send(0, b"x"),
        comm.receive,
        comm.barrier,
        lambda: window.put(0, 0, b"x"),
        lambda: window.get(0, 0, 1),
        window.free,
        lambda: regions.checkpoint(1, {}),
        regions.close,
        lambda: images.save("image", b"x"),
        images.close,
        lambda: job.park(job.bell(), 5),
        lambda: job.fence(0, 5),
    ]:
        expect(outlast.Closed, call, -12)
    expect(outlast.Closed, lambda: job.open(name="late"), -12)
    expect(outlast.Closed, job.leave, -12)
    expect(outlast.Closed, job.barrier, -12)
    assert job.me == 0 and job.members == 1


def main():
    job = outlast.join(segment_limit=128 << 20, time_limit=5)
    store = job.open()
    check_types(job, store)
    check_limits(job, store)
    check_null_characters(job, store)
    check_transactions(store)
    check_conflicts(store)
    check_fork(job, store)
    check_lock_is_released(store)
    check_closed(job, store)
    check_left(job)
    expect(TypeError, lambda: outlast.join(comm=object()))
    os.environ["OUTLAST_ENGINE"] = "mpi"  # as under mpirun
    # A missing plug-in and, where the program is given one, a plug-in of another MPI.
    plugins = ["/nowhere/liboutlast_mpi.so", *sys.argv[1:]]
    for plugin, reason in zip(plugins, ["does not exist", "runs with another MPI"]):
        os.environ["OUTLAST_MPI_SHIM"] = plugin
        message = str(expect(outlast.NotJoined, outlast.join, -2))
        assert reason in message and "outlast mpi setup" in message, message
    print("ok", flush=True)


main()
