"""The last member owns keys and is killed. Its heir adopts some of them and is killed, too. The
survivors' loops adopt all keys of both."""

import os
import signal
import time

import outlast


def end():
    os.kill(os.getpid(), signal.SIGKILL)


def main():
    with outlast.join() as job, job.open(replicas=3) as store:
        last, dead = job.members - 1, []
        if job.me == last:
            for number in range(20):
                store[f"key/{number}"] = b"value"
            end()
        until = time.monotonic() + 30
        while len(dead) < 2 or any(store.keys_of(member) for member in dead):
            assert time.monotonic() < until, (dead, [store.keys_of(member) for member in dead])
            for death in store.deaths():
                if death.member not in dead:
                    dead.append(death.member)
                if death.heir == job.me:
                    assert store.heir_of(death.member) == job.me
                    for key in store.keys_of(death.member):
                        store.adopt(key)
                        if dead == [last] and len(store.keys_of(job.me)) == 5:
                            end()
            time.sleep(0.001)
        try:
            store.keys_of(job.members)
        except outlast.OutlastError as error:
            assert error.code == -1
        else:
            raise AssertionError("there is no such member")
        owned = [
            sum(key.startswith(b"key/") for key in store.keys_of(member))
            for member in range(job.members)
        ]
        assert sum(owned) == 20 and not any(owned[member] for member in dead), owned
        store.add("done", 1)
        while store.add("done", 0) < job.members - 2:
            time.sleep(0.001)
    print("ok", flush=True)


main()
