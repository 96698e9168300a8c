"""A job of Python programs on seats with logs. In the middle the holder of the last seat reports that
it is ready to be killed. Another member takes its seat and repeats what it did, and the functions of
all other seats go on: they are called once, and no call of theirs fails."""

import time

import outlast

STEPS = 20
READY = 12


def main():
    job = outlast.join()
    store = job.open()
    calls = []

    def body(seat):
        calls.append(seat.number)
        me, right = seat.number, (seat.number + 1) % seat.seats
        assert seat.note is None
        for step in range(STEPS):
            # A number that no other look sees.
            seen = seat.remember(lambda: time.monotonic_ns().to_bytes(8, "little"))
            seat.put(me, 1024 + 8 * step, seen)
            seat.put(right, 8 * step, seen)
            seat.barrier()
            assert seat.get(right, 8 * step, 8) == seen
            if step == READY and job.me == job.members - 1:
                print("ready", flush=True)
                time.sleep(60)  # this member is killed here
            seat.barrier()
        assert seat.get(right, 0, 8 * STEPS) == seat.get(me, 1024, 8 * STEPS)
        for look, error in [(lambda: 1 / 0, ZeroDivisionError), (lambda: "text", TypeError)]:
            try:
                seat.remember(look)
                raise AssertionError("remembered")
            except error:
                pass

    try:
        store.run_seats(body, 4096, set=4, logs=1000)
        raise AssertionError("logs of 1000 bytes")
    except outlast.OutlastError as error:
        assert error.code == -1 and "4096" in str(error), error
    assert not calls
    store.run_seats(body, 4096, set=4, interval=1000, logs=1 << 20)
    assert calls.count(job.me) == 1, calls
    store.close()
    job.barrier()
    job.leave()
    print("ok", flush=True)


main()
