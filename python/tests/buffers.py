"""Keys and values of other types than bytes: buffers are stored whole, other types are refused."""

import array
import ctypes
import sys

import outlast

NUMBERS = array.array("d", range(10))
WHOLE = NUMBERS.tobytes()  # 80 bytes

# For each name a buffer and its bytes.
BUFFERS = {
    "bytes": (b"plain", b"plain"),
    "empty": (b"", b""),
    "null characters": (b"\0\0a\0", b"\0\0a\0"),
    "bytearray": (bytearray(b"changes"), b"changes"),
    "array": (NUMBERS, WHOLE),
    "memoryview": (memoryview(NUMBERS), WHOLE),
    "read-only": (memoryview(WHOLE).cast("d"), WHOLE),
    "matrix": (memoryview(NUMBERS).cast("B").cast("d", (2, 5)), WHOLE),
    "every second": (memoryview(NUMBERS)[::2], array.array("d", range(0, 10, 2)).tobytes()),
    "reversed": (memoryview(b"abc")[::-1], b"cba"),
    "ctypes": (
        (ctypes.c_uint32 * 3)(1, 2, 3),
        b"".join(number.to_bytes(4, sys.byteorder) for number in (1, 2, 3)),
    ),
}

# Types that are no values, each with the advice of the error.
NO_VALUES = [
    ("text", "value.encode()"),
    (7, "value.to_bytes"),
    ([1, 2], "pickle.dumps(value)"),
    (None, "pickle.dumps(value)"),
]

try:
    import numpy
except ImportError:
    pass
else:
    numbers = numpy.arange(10.0)
    swapped = numbers.astype(numbers.dtype.newbyteorder())
    record = numpy.array([(1, 2.5)], dtype=[("Origin", "u1"), ("b", "f8")])
    BUFFERS["numpy"] = (numbers, WHOLE)
    BUFFERS["numpy every second"] = (numbers[::2], numbers[::2].tobytes())
    BUFFERS["numpy by columns"] = (numpy.asfortranarray(numbers.reshape(2, 5)), WHOLE)
    BUFFERS["numpy other byte order"] = (swapped, swapped.tobytes())
    BUFFERS["numpy record"] = (record, record.tobytes())
    NO_VALUES.append((numpy.array([None]), "pickle.dumps"))
    NO_VALUES.append((numpy.array([(None,)], dtype=[("a", "O")]), "pickle.dumps"))


def put(store, key, value):
    store[key] = value


def put_if(store, key, value):
    version = store.put_if(key, value)
    store.put_if(key, value, version)


def put_in_transaction(store, key, value):
    with store.transaction() as tx:
        tx[key] = value


def put_as_default(store, key, value):
    assert store.setdefault(key, value) == store[key]


PUTS = [put, put_if, put_in_transaction, put_as_default]


def check_values(store):
    for call in PUTS:
        for name, (buffer, wanted) in BUFFERS.items():
            key = f"{call.__name__}/{name}"
            call(store, key, buffer)
            found = store[key]
            assert found == wanted and type(found) is bytes, (key, found, wanted)


def check_keys(store):
    store["Schl\u00fcssel"] = b"text"
    assert store["Schl\u00fcssel".encode()] == b"text"
    for key in (bytearray(b"buffer"), memoryview(b"buffer"), array.array("b", b"buffer")):
        store[key] = b"found"
        assert store["buffer"] == b"found" and key in store
        del store[key]
        assert key not in store
    store[NUMBERS] = b"long"
    assert store[WHOLE] == b"long"


def refuse(advice, call):
    """Expects a TypeError with this advice."""
    try:
        call()
    except TypeError as error:
        assert advice in str(error), (advice, error)
    else:
        raise AssertionError(f"the call was not refused: {advice}")


def check_refusals(store):
    for call in PUTS:
        for value, advice in NO_VALUES:
            refuse(advice, lambda: call(store, "refused", value))
        refuse("str(key)", lambda: call(store, 7, b"seven"))
    refuse("str(key)", lambda: store[7])
    refuse("str(key)", lambda: store.get(7))
    refuse("str(key)", lambda: 7 in store)
    refuse("str(key)", lambda: store.pop(None, b""))
    refuse("str(key)", lambda: store.scan(7))
    refuse("str(key)", lambda: store.add(True, 1))
    refuse("str(key)", lambda: store.wait(7, 0.001))
    refuse("str(key)", lambda: store.lock(7, 0.001).__enter__())
    assert "refused" not in store and b"\0" * 7 not in store


def check_other_calls(job, store):
    """All calls with bytes take the bytes of a buffer whole, and fill no buffer in part."""
    comm, handle = job.comm(), store.handle("handle")
    window = comm.window(1 << 10, locks=False)
    regions, images = store.regions("regions", 1 << 16), store.images("images", 1 << 16)
    read_only, gaps = bytes(80), memoryview(bytearray(160))[::2]
    for name, (buffer, wanted) in BUFFERS.items():
        comm.send(0, buffer)
        assert comm.receive().bytes == wanted, name
        assert comm.allgather(buffer) == [wanted], name
        window.put_blocking(0, 0, buffer)
        assert window.get(0, 0, len(wanted)) == wanted, name
        regions.checkpoint(1, {"region": buffer}, buffer)
        assert regions.restore().note == wanted, name
        found = bytearray(len(wanted))
        regions.read("region", found)
        assert found == wanted, name
        images.save("image", buffer, buffer)
        assert images.load("image") == (wanted, wanted), name
        handle.put(buffer)
        assert handle.get() == wanted, name
        with store.batch() as batch:
            batch["batch"] = buffer
        store.put_all({"all": buffer})
        assert store["batch"] == store["all"] == wanted, name
    store["whole"] = bytes(80)
    regions.checkpoint(2, {"region": bytes(80)})
    images.save("image", bytes(80))
    with store.pin("whole") as pin:
        for place in (read_only, gaps):
            for fill in [
                lambda: store.get_into("whole", place),
                lambda: store.handle("whole").get_into(place),
                lambda: pin.read_into(place),
                lambda: window.get_into(0, 0, place),
                lambda: regions.restore({"region": place}),
                lambda: regions.read("region", place),
                lambda: images.read("image", place),
            ]:
                try:
                    fill()
                except ValueError as error:
                    assert "writable and contiguous" in str(error), error
                else:
                    raise AssertionError("a part of a buffer was filled")
    for give in [
        lambda: comm.send(0, "text"),
        lambda: comm.allgather(7),
        lambda: window.put(0, 0, [1]),
        lambda: regions.checkpoint(3, {"region": None}),
        lambda: regions.checkpoint(3, {}, "text"),
        lambda: images.save("image", 7),
        lambda: handle.put("text"),
        lambda: store.put_all({"all": 7}),
    ]:
        refuse("must be bytes or another buffer", give)
    for ended in (window, regions, images):
        ended.close()


def main():
    with outlast.join() as job, job.open(replicas=1) as store:
        check_values(store)
        check_keys(store)
        check_refusals(store)
        check_other_calls(job, store)
    print("ok", flush=True)


main()
