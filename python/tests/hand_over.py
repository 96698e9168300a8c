"""A job of two members with a single replica of each value: the first member hands its replicas
over and leaves, and the second member has all values."""

import outlast

KEYS = range(100)


def expect(error, call):
    try:
        call()
    except error:
        return
    raise AssertionError(f"expected {error.__name__}")


def main():
    job = outlast.join()
    store = job.open(replicas=1)
    if job.me == 0:
        for key in KEYS:
            store[str(key)] = b"value"
        job.barrier()
        store.leave(20)
        for call in [lambda: store["1"], store.close, job.leave, job.barrier]:
            expect(outlast.Closed, call)
    else:
        job.barrier()
        expect(outlast.MemberDied, lambda: store.wait("never", 60, member=0))
        assert all(store[str(key)] == b"value" for key in KEYS)
        assert [(death.member, death.left) for death in store.deaths()] == [(0, True)]
        store.close()
        job.leave()


main()
