"""A job of Python programs in global mode: the last member is killed, and the survivors recover
together."""

import sys
import time

import outlast


def main():
    with outlast.join() as job, job.open(replicas=2, global_mode=True) as store:
        last = job.members - 1
        store[f"task/{job.me}"] = b"half done"
        here = store.add("here", 1)
        while here < job.members:
            time.sleep(0.001)
            here = store.add("here", 0)
        if job.me == last:
            time.sleep(0.1)
            print("ready", flush=True)
            store.wait("never", 30)  # this member is killed while it waits
            sys.exit(1)
        try:
            store.wait("never", 30)
            raise AssertionError("this member was not told of the death")
        except outlast.Revoked:
            assert store.is_revoked

        def procedure(tx, deaths):
            (death,) = deaths
            assert death.member == last
            if death.heir == job.me:
                assert tx[f"task/{last}"] == b"half done"
                tx.adopt(f"task/{last}")
            tx[f"recovered/{job.me}"] = b""
            return "recovered"

        assert store.recover(procedure) == "recovered"
        assert len(store.scan("recovered/")) == last and not store.is_revoked
    print("ok", flush=True)


main()
