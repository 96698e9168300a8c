"""A job of Python programs on seats. In the middle the holder of the last seat reports that it is
ready to be killed. Another member takes its seat, and the result is that of a run without a death.
Then the function of a seat raises an exception."""

import array
import threading
import time

import outlast

STEPS = 12
READY = 7


def expect(error, call, code=None):
    try:
        call()
    except outlast.RolledBack:
        raise
    except error as found:
        assert code is None or found.code == code, (found.code, found)
        return found
    raise AssertionError(f"expected {error.__name__}")


def main():
    job = outlast.join()
    store = job.open()
    kept, elsewhere = [], []

    def body(seat):
        kept.append(seat)
        me, seats = seat.number, seat.seats
        right = (me + 1) % seats
        step = 0 if seat.note is None else int(seat.note)
        assert step == 0 or seat.is_replaying
        while step < STEPS:
            for target in range(seats):
                seat.accumulate(target, 0, "sum", [step])
            assert seat.fetch_and_op(right, 8, "sum", -1, signed=True) == -step
            assert seat.compare_and_swap(right, 16, step, step + 1) == step
            seat.lock(right)
            number = array.array("q", seat.get(right, 24, 8))
            number[0] += step
            seat.put(right, 24, number)
            expect(outlast.OutlastError, seat.point, -1)
            seat.unlock(right)
            expect(outlast.OutlastError, lambda: seat.unlock(right), -24)
            seat.flush(right)
            if step == READY and job.me == job.members - 1:
                print("ready", flush=True)
                time.sleep(60)  # this member is killed here
            step += 1
            if step % 3 == 0:
                seat.barrier()
            seat.barrier_point(b"%d" % step)
        seat.flush()
        assert seat.is_whole() in (True, False) and seat.bytes == 4096
        expect(outlast.OutlastError, lambda: seat.get(seats, 0, 8), -1)
        expect(outlast.OutlastError, lambda: seat.get(0, 0, 1 << 40), -1)
        expect(TypeError, lambda: seat.put(0, 0, "text"))
        expect(ValueError, lambda: seat.accumulate(0, 0, "product", [1]))
        caught = []

        def call():
            try:
                seat.barrier()
            except outlast.OutlastError as error:
                caught.append(error.code)

        thread = threading.Thread(target=call)
        thread.start()
        thread.join()
        elsewhere.extend(caught)
        found = array.array("q", [0] * 4)
        seat.get_into(me, 0, found)
        return list(found)

    results = store.run_seats(body, 4096, set=4)
    total = sum(range(STEPS))
    assert results and elsewhere and set(elsewhere) == {-1}, (results, elsewhere)
    for number, found in results.items():
        assert found == [total * job.members, -STEPS, STEPS, total], (number, found)
    expect(outlast.OutlastError, kept[-1].barrier, -1)  # in another thread

    def fails(seat):
        if seat.number == 1:
            return 1 / 0
        while True:
            seat.barrier()

    error = expect(outlast.SeatFailed, lambda: store.run_seats(fails, 64), -28)
    assert "seat 1" in str(error) and "division" in str(error), error
    store.add("causes", 1 if type(error.__cause__) is ZeroDivisionError else 0)
    job.barrier()
    assert store.add("causes", 0) == 1
    expect(TypeError, lambda: store.run_seats(5, 64))
    expect(OverflowError, lambda: store.run_seats(fails, -1))
    expect(ValueError, lambda: store.run_seats(fails, 64, interval=-1))
    job.barrier()
    store.close()
    job.barrier()
    job.leave()
    print("ok", flush=True)


main()
