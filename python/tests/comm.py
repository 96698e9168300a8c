"""A job of Python programs that exchange messages and share windows. Then the last member is killed
while it holds a lock, and the survivors revoke, agree, shrink and go on."""

import array
import os
import signal
import sys
import threading
import time

import outlast


def expect(error, call, code=None):
    try:
        call()
    except error as found:
        assert code is None or found.code == code, (found.code, found)
        return found
    raise AssertionError(f"expected {error.__name__}")


def interrupt(what, call):
    """Expects that Ctrl-C ends a wait of 30 s soon."""
    timer = threading.Timer(0.2, lambda: os.kill(os.getpid(), signal.SIGINT))
    began = time.monotonic()
    timer.start()
    expect(KeyboardInterrupt, call)
    timer.join()
    assert time.monotonic() - began < 10, what


def check_messages(comm):
    me, size = comm.rank, comm.size
    right, left = (me + 1) % size, (me - 1) % size
    comm.send(right, array.array("i", [me, 7]), tag=3)
    got = comm.receive(left, 3)
    assert (got.source, got.tag) == (left, 3) and got.bytes == array.array("i", [left, 7]).tobytes()
    request = comm.start_receive(tag=4)
    assert request.test() is None
    comm.barrier()
    comm.send(left, b"\0a\0", 4)
    got = request.wait()
    assert got.source == right and got.bytes == b"\0a\0"
    expect(outlast.OutlastError, request.test, -7)
    comm.send(me, b"to myself", 5)
    assert comm.probe(tag=5) == (me, 5, 9) and comm.receive(me).bytes == b"to myself"
    started = comm.start_receive(left, 6)
    interrupt("a receive", started.wait)
    started.cancel()
    expect(outlast.OutlastError, started.wait, -7)
    comm.interrupt(me)
    expect(outlast.Interrupted, comm.receive, -22)
    expect(outlast.OutlastError, lambda: comm.send(size, b""), -1)
    expect(outlast.OutlastError, lambda: comm.receive(tag=1 << 31), -1)
    expect(TypeError, lambda: comm.send(right, "text"))
    expect(TypeError, lambda: comm.send("right", b""))
    expect(OverflowError, lambda: comm.receive(-1))


def check_together(comm):
    me, size = comm.rank, comm.size
    comm.barrier()
    room = bytearray(b"from root" if me == 1 else 9)
    comm.broadcast(bytes(room) if me == 1 else room, 1)
    assert room == b"from root"
    if me == 0:
        expect(ValueError, lambda: comm.broadcast(b"read-only", 1))
    assert comm.allreduce("sum", [me, -1]) == [sum(range(size)), -size]
    assert comm.allreduce("max", [0.5 * me]) == [0.5 * (size - 1)]
    expect(ValueError, lambda: comm.allreduce("product", [1]))
    expect(TypeError, lambda: comm.allreduce("sum", ["one"]))
    expect(outlast.OutlastError, lambda: comm.allreduce("or", [1.5]), -1)
    assert comm.allgather(b"x" * me) == [b"x" * rank for rank in range(size)]
    copy = comm.duplicate()
    half = copy.split(me % 2, key=-me)
    assert half.size == size // 2 and half.member(half.rank) == comm.member(me)
    assert half.rank_of((me + 1) % size) is None and copy.split(None) is None
    half.free()
    expect(outlast.Closed, half.barrier, -12)
    expect(outlast.OutlastError, lambda: comm.free(), -1)
    agreed = copy.agree(0b110 | me % 2)
    assert agreed.flags == 0b110 and agreed.failed == agreed.unacknowledged == []
    return copy


def check_window(comm):
    me, size = comm.rank, comm.size
    window = comm.window(64 + 8 * me)
    assert [window.length(rank) for rank in range(size)] == [64 + 8 * rank for rank in range(size)]
    expect(outlast.OutlastError, lambda: window.put(0, 0, b"x"), -24)
    for target in range(size):
        with window.lock(target) as abandoned:
            assert abandoned is False and window.holders(target) == [me]
            window.check_lock(target)
            window.put(target, 8 * me, array.array("q", [me]))
            window.accumulate(target, 48, "sum", [1 << 63, me])
            window.flush(target)
        expect(outlast.OutlastError, lambda: window.check_lock(target), -24)
    comm.barrier()
    with window.lock_all() as abandoned:
        assert abandoned is False
        into = array.array("q", [-1] * size)
        window.get_into(me, 0, into)
        assert list(into) == list(range(size))
        assert window.get(me, 8, 8) == (1).to_bytes(8, sys.byteorder)
        assert window.fetch_and_op(me, 48, "keep", 0) == (size << 63) % (1 << 64)
        assert window.fetch_and_op(me, 56, "keep", 0, signed=True) == sum(range(size))
        expect(outlast.OutlastError, lambda: window.get(me, 0, 1 << 40), -1)
        expect(outlast.OutlastError, lambda: window.put(me, 60 + 8 * me, b"12345"), -1)
        expect(outlast.OutlastError, lambda: window.fetch_and_op(me, 4, "sum", 1), -1)
        expect(OverflowError, lambda: window.fetch_and_op(me, 0, "sum", -1))
        expect(ValueError, lambda: window.accumulate(me, 0, "product", [1]))
        expect(TypeError, lambda: window.put(me, 0, 5))
        expect(ValueError, lambda: window.get_into(me, 0, bytes(8)))
        expect(outlast.OutlastError, window.lock(me).__enter__, -1)
    comm.barrier()
    # The last rank holds a lock that rank 0 waits for.
    if me == size - 1:
        with window.lock(0):
            comm.barrier()
            comm.barrier()
    else:
        comm.barrier()
        if me == 0:
            expect(outlast.Locked, window.lock(0, seconds=0.01).__enter__, -8)
            interrupt("a lock", window.lock(0, seconds=30).__enter__)
        comm.barrier()
    open_window = comm.window(16, locks=False)
    open_window.put_blocking((me + 1) % size, 0, b"neighbor")
    comm.barrier()
    assert open_window.get(me, 0, 8) == b"neighbor"
    assert open_window.compare_and_swap(me, 8, 0, 5) == 0
    assert open_window.compare_and_swap(me, 8, 0, 6) == 5
    assert open_window.fetch_and_op(me, 8, "min", -3, signed=True) == 5
    assert open_window.grow(8) == 24
    offset = open_window.attach(32)
    open_window.put(me, offset, b"aside")
    assert open_window.get(me, offset, 5) == b"aside"
    open_window.detach(offset)
    assert open_window.bytes_aside() in (0, 32)
    expect(outlast.OutlastError, lambda: open_window.get(me, offset, 5), -1)
    open_window.flush()
    open_window.close()
    expect(outlast.Closed, lambda: open_window.get(me, 0, 1), -12)
    return window


def check_bell(job):
    bell = job.bell()
    began = time.monotonic()
    while not job.park(bell, 0.05) and time.monotonic() - began < 10:
        job.ring(job.me)
    assert job.bell() != bell
    expect(outlast.OutlastError, lambda: job.ring(99), -1)
    expect(ValueError, lambda: job.park(bell, -1))


def main():
    signal.signal(signal.SIGINT, signal.default_int_handler)
    job = outlast.join()
    comm, last = job.comm(), job.members - 1
    check_bell(job)
    check_messages(comm)
    copy = check_together(comm)
    window = check_window(copy)
    job.barrier()  # whichever member dies before another member is back from it
    if job.me == last:
        lock = window.lock(0)
        lock.__enter__()
        copy.send(0, b"locked", 9)
        print("ready", flush=True)
        time.sleep(60)  # this member is killed here
        sys.exit(1)
    if job.me == 0:
        assert copy.receive(last, 9).bytes == b"locked"
    expect(outlast.ProcFailed, lambda: copy.receive(last, 10), -20)
    assert copy.failed() == window.failed() == [last]
    pending = copy.start_receive()
    expect(outlast.ProcFailed, pending.wait, -21)
    copy.failure_ack()
    assert copy.acked() == [last] and pending.test() is None
    pending.cancel()
    copy.notify_failures([0, last])
    if job.me == 0:
        with window.lock(0) as abandoned:
            assert abandoned is True
    assert window.shrink() == [last]
    job.barrier()  # of the survivors
    if job.me == 1:
        window.revoke()
        copy.revoke()
    until = time.monotonic() + 20
    while not (copy.is_revoked and window.is_revoked):
        assert time.monotonic() < until
        time.sleep(0.001)
    expect(outlast.Revoked, copy.barrier, -16)
    expect(outlast.Revoked, lambda: window.lock(0).__enter__(), -16)
    assert copy.agree().failed == [last]
    survivors = copy.shrink()
    assert survivors.size == last and survivors.rank == job.me
    window.free()
    expect(outlast.Closed, lambda: window.length(0), -12)
    assert survivors.allreduce("sum", [1]) == [last]
    print("ok", flush=True)
    survivors.barrier()
    job.leave()
    expect(outlast.Closed, lambda: job.park(job.bell(), 1), -12)


main()
