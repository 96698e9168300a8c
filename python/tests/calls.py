"""A member makes the calls that a dict does not have: handles, batches, pins, arrays, objects,
listing, statistics, snapshots."""

import array
import collections
import tempfile

import outlast


def expect(error, call):
    try:
        call()
    except error as found:
        return found
    raise AssertionError(f"expected {error.__name__}")


def check_mapping(store):
    assert isinstance(store, collections.abc.MutableMapping)
    store.update({"a": b"1", "b": b"2"})
    assert sorted(store) == [b"a", b"b"] and len(store) == 2
    assert sorted(store.items()) == [(b"a", b"1"), (b"b", b"2")]
    assert sorted(store.scan_items("a")) == [(b"a", b"1")] and len(store.scan_items()) == 2
    assert sorted(store.values()) == [b"1", b"2"] and b"a" in store.keys()
    assert store.get("none", 7) == 7 and store.get("none") is None
    key, value = store.popitem()
    assert key not in store and value in (b"1", b"2")
    store.clear()
    assert len(store) == 0 and store.scan() == []
    assert str(expect(KeyError, store.popitem)).strip("'") == "the store is empty"
    expect(TypeError, lambda: store.pop("a", 1, 2))
    assert expect(KeyError, lambda: store["missing"]).args == ("missing",)


def check_handle(store):
    handle = store.handle("handle")
    assert handle.key == b"handle" and handle.get() is None and handle.version is None
    first = handle.put(b"one")
    assert handle.get() == b"one" and handle.version == first and store["handle"] == b"one"
    second = handle.put_if(array.array("i", [1, 2]), first)
    assert second > first and handle.get_versioned() == (store["handle"], second)
    expect(outlast.Conflict, lambda: handle.put_if(b"x", first))
    into = array.array("i", [0, 0, 5])
    assert handle.get_into(into) == 8 and list(into) == [1, 2, 5]
    assert handle.delete() and not handle.delete()
    assert handle.add(3) == 3 and handle.add(-1) == 2
    expect(TypeError, lambda: handle.put("text"))
    expect(outlast.OutlastError, lambda: store.handle(b""))


def check_buffers_to_fill(store):
    store["numbers"] = array.array("d", range(4))
    into = array.array("d", [7.0] * 5)
    assert store.get_into("numbers", into) == 32 and list(into) == [0.0, 1.0, 2.0, 3.0, 7.0]
    assert store.get_into("missing", into) is None and into[0] == 0.0
    small = bytearray(31)
    error = expect(outlast.TooSmall, lambda: store.get_into("numbers", small))
    assert error.code == -10 and small == bytes(31)
    expect(ValueError, lambda: store.get_into("numbers", bytes(32)))
    expect(ValueError, lambda: store.get_into("numbers", memoryview(bytearray(64))[::2]))
    expect(TypeError, lambda: store.get_into("numbers", 32))
    expect(TypeError, lambda: store.get_into("numbers", "text"))
    # A view holds its buffer, and lets it go.
    grows = bytearray(32)
    store["grows"], _ = grows, store.get_into("numbers", grows)
    grows.append(1)


def check_numpy(store):
    try:
        import numpy
    except ImportError:
        return
    matrix = numpy.arange(12.0).reshape(3, 4)
    store["matrix"] = matrix
    assert (store.get_array("matrix", "f8", (3, 4)) == matrix).all()
    assert (store.get_array("matrix", numpy.float64) == matrix.ravel()).all()
    store.get_array("matrix", "f8")[0] = 1.0  # the array is writable
    store["columns"] = matrix[:, ::2]
    assert (store.get_array("columns", "f8", (3, 2)) == matrix[:, ::2]).all()
    into = numpy.zeros((3, 4))
    assert store.get_into("matrix", into) == 96 and (into == matrix).all()
    expect(ValueError, lambda: store.get_into("matrix", numpy.zeros((4, 3)).T))
    expect(ValueError, lambda: store.get_array("matrix", "f8", (3, 3)))
    expect(ValueError, lambda: store.get_array("matrix", "f8", (4, 4)))
    expect(ValueError, lambda: store.get_array("matrix", "V7"))
    expect(TypeError, lambda: store.get_array("matrix", object))
    expect(TypeError, lambda: store.get_array("matrix", object, 12))
    expect(KeyError, lambda: store.get_array("missing", "f8", 3))
    empty = numpy.empty((0, 3))
    store["nothing"] = empty
    assert store["nothing"] == b"" and store.get_array("nothing", "f8", (0, 3)).shape == (0, 3)


def check_batch(store):
    with store.batch() as batch:
        for number in range(50):
            batch[f"batch/{number}"] = b"%d" % number
    assert len(store.scan("batch/")) == 50
    store.put_all({"all/1": b"1", "all/2": bytearray(b"2")})
    store.put_all([("all/3", b"3"), (b"all/4", b"4")])
    assert store.get_all(["all/4", b"all/2", "all/5"]) == [b"4", b"2", None]
    expect(TypeError, lambda: store.put_all([("all/6", b"6"), ("all/7", 7)]))
    expect(ValueError, lambda: store.put_all([("all/6", b"6", 6)]))
    assert "all/6" not in store

    def fail():
        with store.batch() as batch:
            batch["all/8"] = b"8"
            raise ZeroDivisionError

    expect(ZeroDivisionError, fail)
    assert store["all/8"] == b"8"


def check_pin(store):
    store["mesh"] = b"first version"
    with store.pin("mesh") as pin:
        store["mesh"] = b"second"
        part = bytearray(7)
        pin.read_into(part, 6)
        assert part == b"version" and len(pin) == 13 and pin.get() == b"first version"
        assert pin.owner == 0 and pin.version < store.get_versioned("mesh")[1]
        error = expect(outlast.OutlastError, lambda: pin.read_into(part, 7))
        assert error.code == -1
    assert expect(outlast.OutlastError, pin.get).code == -7
    expect(KeyError, lambda: store.pin("missing"))


def check_objects(store):
    value = {"list": [1, 2], "name": "Schl\u00fcssel"}
    assert store.put_object("object", value) > (0, 0)
    assert store.get_object("object") == value
    assert store.get_object("missing") is None and store.get_object("missing", 5) == 5


def check_wait(store):
    value, version = store.wait_versioned("object", 1)
    assert store.get_versioned("object") == (value, version)
    assert store.wait_versioned("object", 0, newer_than=version) is None
    with store.lock("guarded", 1):
        pass
    lock = store.lock("guarded", 0)
    with lock:
        assert lock.version > (0, 0)
        assert expect(outlast.OutlastError, lock.__enter__).code == -15
    assert expect(outlast.OutlastError, lambda: lock.version).code == -7


def check_figures(store):
    for number in range(200):
        store["timed"] = b"%d" % number
    for _ in range(200):
        store["timed"]
    stats = store.stats()
    assert stats["put"]["samples"] > 0 and stats["get"]["p50"] > 0, stats
    whole = store.job_stats()
    assert whole["keys"] == len(store) and whole["partitions_lost"] == 0, whole
    assert store.memory_use()["values"] > 0 and store.memory_use()["total"] > 0
    assert store.repair_status() == {"replicas_missing": 0, "partitions_lost": 0}
    assert store.wait_repaired(5) and store.replicas_of("timed") == [0]
    assert store.lost_keys() == [] and store.lost_partitions() == [] and store.accept_loss() == 0


def check_snapshots(job, store):
    with tempfile.TemporaryDirectory() as folder:
        snapshots = store.snapshots(folder)
        store["kept"] = b"on disk"
        taken = snapshots.take()
        assert taken["records"] == len(store) and str(snapshots.folder) == folder
        expect(outlast.AlreadyOpen, lambda: store.snapshots(folder))
        with job.open(name="restored") as restored:
            records, size = restored.restore_snapshot(folder)
            assert records == taken["records"] and size > 0 and restored["kept"] == b"on disk"
            expect(outlast.OutlastError, lambda: restored.restore_snapshot(folder + "/none"))
            expect(ValueError, lambda: restored.restore_snapshot(folder, 2, 2))


def check_regions(store):
    regions = store.regions("state", 1 << 16)
    cells, step = array.array("d", range(100)), array.array("q", [3])
    found = regions.restore({})
    assert (found.rank, found.size, found.version, found.note) == (0, 1, None, b"")
    regions.checkpoint(7, {"cells": cells, "step": step}, b"note")
    cells[5], step[0] = -1.0, 0
    found = regions.restore({"cells": cells, "step": step})
    assert (found.version, found.note) == (7, b"note") and cells[5] == 5.0 and step[0] == 3
    assert regions.owners() == [{"cells": 800, "step": 8}]
    part = array.array("d", [0.0, 0.0])
    regions.read("cells", part, owner=0, offset=80)
    assert list(part) == [10.0, 11.0]
    regions.read("cells", part, offset=8)
    assert list(part) == [1.0, 2.0]
    expect(outlast.OutlastError, lambda: regions.restore({"cells": array.array("d", [0.0])}))
    expect(ValueError, lambda: regions.restore({"cells": bytes(800)}))
    expect(TypeError, lambda: regions.checkpoint(8, {"cells": 5}))
    expect(TypeError, lambda: regions.checkpoint(8, {5: cells}))
    expect(outlast.OutlastError, lambda: regions.checkpoint(8, {"cells": bytes(1 << 17)}))
    regions.close()
    expect(outlast.Closed, lambda: regions.checkpoint(9, {}))
    expect(outlast.OutlastError, lambda: store.regions("other", 0))


def check_images(store):
    images = store.images("images", 1 << 16)
    cells = array.array("d", range(100))
    assert images.load("cells") is None and not images.delete("cells")
    assert images.read("cells", bytearray(1)) is False
    images.save("cells", b"older", b"note")
    images.save("cells", cells)
    assert images.load("cells") == (cells.tobytes(), b"")
    part = array.array("d", [0.0, 0.0])
    assert images.read("cells", part, offset=80) and list(part) == [10.0, 11.0]
    assert images.missing() == 0 and images.delete("cells") and images.load("cells") is None
    expect(TypeError, lambda: images.save("cells", 5))
    expect(ValueError, lambda: images.read("cells", bytes(8)))
    expect(outlast.OutlastError, lambda: images.save("cells", bytes(1 << 17)))
    images.close()
    expect(outlast.Closed, lambda: images.load("cells"))


def check_options(job):
    options = {"partitions": 16, "repair_share": 50, "slab_len_max": 1 << 16}
    with job.open(name="options", **options) as store:
        assert store.partition_of("key") < 16
        regions = store.regions("roomy", 1 << 16, room=200)
        assert regions.restore().size == 1
        regions.close()
    with job.open(name="writers", global_mode=True, sole_writers=True) as store:
        store.handle("key").put(b"value")
        assert store["key"] == b"value"
    expect(outlast.OutlastError, lambda: job.open(name="bad", sole_writers=True))
    expect(OverflowError, lambda: job.open(name="bad", repair_share=-1))


def check_losses(job, store):
    expect(TypeError, lambda: store.on_loss(5))
    store.on_loss(print)
    partition = store.partition_of("key")
    assert store.lost_partitions() == [] and store.accept_loss([partition]) == 1
    expect(outlast.OutlastError, lambda: store.accept_loss([1 << 30]))
    expect(OverflowError, lambda: store.accept_loss([-1]))
    expect(outlast.OutlastError, lambda: job.fence(9, 1))
    expect(ValueError, lambda: job.fence(0, -1))


def main():
    with outlast.join(time_limit=20, domain="rack3/node17") as job, job.open() as store:
        assert job.time_limit == 20.0 and job.dead == [] and job.domain(0) == "rack3/node17"
        assert "member 0 of 1" in repr(job) and store.name == "" and not store.is_closed
        check_mapping(store)
        check_handle(store)
        check_buffers_to_fill(store)
        check_numpy(store)
        check_batch(store)
        check_pin(store)
        check_objects(store)
        check_wait(store)
        check_figures(store)
        check_snapshots(job, store)
        check_regions(store)
        check_images(store)
        check_losses(job, store)
        check_options(job)
    assert store.is_closed and repr(store) == "<outlast.Store, closed>"
    print("ok", flush=True)


main()
