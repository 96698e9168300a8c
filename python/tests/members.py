"""A job of Python programs: each makes every call. Then the last member is killed, and the
survivors take over its keys."""

import sys
import time

import outlast


def expect(error, call):
    try:
        call()
    except error as found:
        return found
    raise AssertionError(f"expected {error.__name__}")


def transfer(tx):
    tx.add("from", -5)
    tx.add("to", 5)
    return "moved"


def main():
    with outlast.join() as job, job.open(replicas=3) as store:
        mine = f"mine/{job.me}"
        assert store.get(mine) is None and mine not in store
        expect(KeyError, lambda: store[mine])
        store[mine] = b"forty-two"
        assert store[mine] == b"forty-two" and store[mine.encode()] == b"forty-two"
        value, version = store.get_versioned(mine)
        expect(outlast.Conflict, lambda: store.put_if(mine, b"x"))
        newer = store.put_if(mine, b"y" * 1000, version)
        assert store.wait(mine, 1, newer_than=version) == b"y" * 1000
        assert store.wait(mine, 0.001, newer_than=newer) is None
        store["gone"] = b""
        store.pop("gone", None)
        expect(KeyError, lambda: store.pop(f"none/{job.me}"))
        first = store.setdefault("first", mine.encode())
        assert store.setdefault("first", b"") == first == store["first"]
        store.setdefault("prize", b"gold")
        job.barrier()
        store.add("won", 1 if store.pop("prize", None) == b"gold" else 0)
        error = expect(outlast.OutlastError, lambda: store.add(mine, 1))
        assert error.code == -11 and str(error)
        with store.lock(f"lock/{job.me}", 1) as abandoned:
            assert abandoned is None
            expect(outlast.Locked, lambda: store.lock(f"lock/{job.me}", 0.001).__enter__())
        assert store.transact(transfer) == "moved"

        def refuse():
            with store.transaction() as tx:
                tx["refused"] = b"x"
                assert tx["refused"] == b"x"
                raise ZeroDivisionError

        expect(ZeroDivisionError, refuse)
        assert "refused" not in store
        job.barrier()
        assert store.add("won", 0) == 1 and "prize" not in store
        assert (store.add("from", 0), store.add("to", 0)) == (-5 * job.members, 5 * job.members)
        all_keys = [f"mine/{member}".encode() for member in range(job.members)]
        assert sorted(store.scan("mine/")) == all_keys
        job.barrier()
        last = job.members - 1
        told = []  # of a store whose values have a single replica each
        single = job.open(replicas=1, name="single")
        single.on_loss(lambda partitions: told.extend(partitions))
        images = store.images("images", 1 << 16, set=4)
        images.save(mine, b"x" * 9000, b"note")
        job.barrier()
        if job.me == last:
            print("ready", flush=True)
            store.wait("never", 30)  # this member is killed while it waits
            sys.exit(1)
        expect(outlast.MemberDied, lambda: store.wait("never", 30, member=last))
        (death,) = store.deaths()
        assert death.member == last and job.living == last and store.deaths() == []
        if death.heir == job.me:
            adopted = [key for key in store.keys_of(last) if store.adopt(key)]
            assert f"mine/{last}".encode() in adopted
        assert store[f"mine/{last}"] == b"y" * 1000
        while not told:
            time.sleep(0.001)
        job.barrier()  # of the survivors
        assert sorted(told) == single.lost_partitions()
        job.barrier()
        assert single.accept_loss(told) == len(told) > 0 and single.lost_partitions() == []
        assert images.load(f"mine/{last}") == (b"x" * 9000, b"note") and images.missing() > 0
        job.fence(last, 1)  # it is dead already
        job.barrier()
        images.close()
        single.close()
        assert store.keys_of(last) == []
    print("ok", flush=True)


main()
