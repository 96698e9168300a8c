"""Outlast for Python: a dict in the memories of the processes of a parallel program that outlasts any of them.

    import outlast
    with outlast.join() as job, job.open(replicas=3) as store:
        store["result/9"] = b"forty-two"
        store.add("tasks-left", -1)
        with store.transaction() as tx:       # all of it or nothing
            tx["a"], tx["b"] = b"1", b"2"

Keys are bytes or str (UTF-8), values are bytes. Started by `outlast run -n 4 python3 PROGRAM` a process is one of four members;
alone it is a job of one. The library liboutlast_c is looked for in OUTLAST_LIBRARY, beside this file, in target/release and
target/debug of the folders above, and where the system looks. The calls release Python's lock while they wait.
"""

import ctypes
import ctypes.util
import os
import pathlib
from collections.abc import MutableMapping

__all__ = ["join", "Job", "Store", "Transaction", "Death", "OutlastError", "Conflict", "DataLost", "Timeout", "Locked", "Aborted", "Revoked", "MemberDied"]


class OutlastError(Exception):
    """A call failed; the message says why and what to do."""

    code = None


class DataLost(OutlastError):
    """All copies of the key's partition are lost."""


class Timeout(OutlastError):
    """A living member did not answer in time; whether the call had an effect is unknown."""


class Conflict(OutlastError):
    """The condition does not hold; nothing was changed."""


class Aborted(OutlastError):
    """Others were faster; nothing was changed. Do it again."""


class Locked(OutlastError):
    """The lock is held by another."""


class Revoked(OutlastError):
    """Global mode: a member has died; all have to call recover()."""


class MemberDied(OutlastError):
    """The member that was waited for is dead, and has not put the key."""


_OK, _ABSENT, _DIED, _TOO_SMALL = 0, 1, 2, -10
_ERRORS = {-3: DataLost, -4: Timeout, -5: Conflict, -6: Aborted, -8: Locked, -16: Revoked}


class _Version(ctypes.Structure):
    _fields_ = [("counter", ctypes.c_uint64), ("writer", ctypes.c_uint32)]


class _Options(ctypes.Structure):
    _fields_ = [
        ("replicas", ctypes.c_uint32),
        ("allow_fewer", ctypes.c_uint32),
        ("expected_keys", ctypes.c_uint64),
        ("checksums", ctypes.c_uint32),
        ("global_mode", ctypes.c_uint32),
        ("salvage", ctypes.c_uint32),
    ]


_VISIT = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)


def _find():
    named = os.environ.get("OUTLAST_LIBRARY")
    if named:
        return named
    here = pathlib.Path(__file__).resolve().parent
    places = [here] + [above / "target" / kind for above in here.parents for kind in ("release", "debug")]
    for place in places:
        if (place / "liboutlast_c.so").is_file():
            return str(place / "liboutlast_c.so")
    found = ctypes.util.find_library("outlast_c")
    if found is None:
        raise ImportError("liboutlast_c.so was not found: build it with `cargo build --release -p outlast-c`, or set OUTLAST_LIBRARY")
    return found


def _load():
    library = ctypes.CDLL(_find())
    p, size, bytes_ = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p
    key = [bytes_, size]
    out = [p, size, ctypes.POINTER(size)]
    version = ctypes.POINTER(_Version)
    number = ctypes.POINTER(ctypes.c_int64)
    handle = ctypes.POINTER(p)
    calls = {
        "join": [handle], "leave": [p],
        "open": [p, ctypes.POINTER(_Options), handle], "close": [p],
        "put": [p, *key, bytes_, size, version], "put_if": [p, *key, bytes_, size, version, version],
        "get": [p, *key, *out, version], "exists": [p, *key], "delete": [p, *key],
        "add": [p, *key, ctypes.c_int64, number],
        "wait": [p, *key, version, ctypes.c_uint64, ctypes.c_int64, *out, version],
        "scan": [p, *key, _VISIT, p], "keys_of": [p, ctypes.c_uint32, _VISIT, p], "adopt": [p, *key],
        "next_death": [p, ctypes.POINTER(ctypes.c_uint64), ctypes.POINTER(ctypes.c_uint32), ctypes.POINTER(ctypes.c_uint32)],
        "accept_loss": [p, ctypes.POINTER(size)],
        "lock": [p, *key, ctypes.c_uint64, handle, number], "unlock": [p],
        "tx_begin": [p, handle], "tx_get": [p, *key, *out], "tx_put": [p, *key, bytes_, size],
        "tx_delete": [p, *key], "tx_add": [p, *key, ctypes.c_int64, number], "tx_adopt": [p, *key],
        "revoke": [p], "is_revoked": [p], "recover_begin": [p, handle], "recover_end": [p], "recover_fail": [p],
        "recovery_death": [p, size, ctypes.POINTER(ctypes.c_uint32), ctypes.POINTER(ctypes.c_uint32)],
        "tx_commit": [p], "tx_abort": [p], "tx_retry": [p],
    }  # fmt: skip
    for name, arguments in calls.items():
        call = getattr(library, "outlast_" + name)
        call.argtypes, call.restype = arguments, ctypes.c_int
    for name, arguments, result in [
        ("me", [p], ctypes.c_uint32), ("members", [p], ctypes.c_uint32), ("living", [p], ctypes.c_uint32),
        ("epoch", [p], ctypes.c_uint64), ("error", [], ctypes.c_char_p), ("tx_free", [p], None),
        ("recovery_tx", [p], p),
    ]:  # fmt: skip
        call = getattr(library, "outlast_" + name)
        call.argtypes, call.restype = arguments, result
    return library


_library = _load()


def _check(code):
    """The code of a call that succeeded, or an exception."""
    if code >= 0:
        return code
    error = _ERRORS.get(code, OutlastError)(_library.outlast_error().decode(errors="replace"))
    error.code = code
    raise error


def _key(key):
    key = key.encode() if isinstance(key, str) else bytes(key)
    return key, len(key)


def _fetch(call):
    """Calls with a buffer that is large enough; None if there is nothing."""
    length = ctypes.c_size_t(0)
    capacity = 256
    while True:
        buffer = ctypes.create_string_buffer(capacity)
        code = call(buffer, capacity, ctypes.byref(length))
        if code == _TOO_SMALL:
            capacity = length.value
            continue
        code = _check(code)
        if code == _DIED:
            raise MemberDied("the member is dead, and the key is not there")
        return buffer.raw[: length.value] if code == _OK else None


def _new(call, *arguments):
    handle = ctypes.c_void_p()
    _check(call(*arguments, ctypes.byref(handle)))
    return handle


def join():
    """Joins the job that this process was started in."""
    return Job()


class Death:
    """A member that died, and who takes over from it."""

    def __init__(self, member, heir):
        self.member, self.heir = member, heir

    def __repr__(self):
        return f"Death(member={self.member}, heir={self.heir})"


class Job:
    """This process's membership; ends with the with statement, or with leave()."""

    def __init__(self):
        self._handle = _new(_library.outlast_join)

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        # After an exception the process ends as it would have: the others see a death.
        if kind is None:
            self.leave()

    def leave(self):
        handle, self._handle = self._handle, None
        _check(_library.outlast_leave(handle))

    @property
    def me(self):
        return _library.outlast_me(self._handle)

    @property
    def members(self):
        return _library.outlast_members(self._handle)

    @property
    def living(self):
        return _library.outlast_living(self._handle)

    def open(self, replicas=0, allow_fewer=False, expected_keys=0, checksums=False, global_mode=False, salvage=False):
        """Opens the store; all members do, with the same options. In global mode all stop at a death and recover together; with
        salvage survivors read the memory of the dead."""
        return Store(self, _Options(replicas, allow_fewer, expected_keys, checksums, global_mode, salvage))


class Store(MutableMapping):
    """A dict that survives. Iterating lists the keys that are there throughout; it is no snapshot."""

    def __init__(self, job, options):
        self._handle = _new(_library.outlast_open, job._handle, ctypes.byref(options))
        self._seen = ctypes.c_uint64(_library.outlast_epoch(self._handle))

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        if kind is None:
            self.close()

    def close(self):
        handle, self._handle = self._handle, None
        _check(_library.outlast_close(handle))

    def get_versioned(self, key):
        """The value and its version, or None."""
        version = _Version()
        value = _fetch(lambda *out: _library.outlast_get(self._handle, *_key(key), *out, ctypes.byref(version)))
        return None if value is None else (value, (version.counter, version.writer))

    def __getitem__(self, key):
        found = self.get_versioned(key)
        if found is None:
            raise KeyError(key)
        return found[0]

    def __setitem__(self, key, value):
        _check(_library.outlast_put(self._handle, *_key(key), bytes(value), len(value), None))

    def put_if(self, key, value, version=None):
        """Puts if the key has this version, or, with None, does not exist; Conflict otherwise. The new version."""
        new = _Version()
        expected = None if version is None else ctypes.byref(_Version(*version))
        _check(_library.outlast_put_if(self._handle, *_key(key), bytes(value), len(value), expected, ctypes.byref(new)))
        return new.counter, new.writer

    def __delitem__(self, key):
        if _check(_library.outlast_delete(self._handle, *_key(key))) == _ABSENT:
            raise KeyError(key)

    def __contains__(self, key):
        return _check(_library.outlast_exists(self._handle, *_key(key))) == _OK

    # What a dict does in two steps, others may come between here.

    def pop(self, key, *default):
        """Takes a value out: of several that do so at once one gets it. KeyError if there is none and no default."""

        def take(tx):
            value = tx.get(key)
            if value is not None:
                del tx[key]
            return value

        value = self.transact(take)
        if value is None and not default:
            raise KeyError(key)
        return default[0] if value is None else value

    def popitem(self):
        for key in self.scan(b""):
            value = self.pop(key, None)
            if value is not None:
                return key, value
        raise KeyError("the store is empty")

    def setdefault(self, key, default):
        """The value of a key, which is put if there is none; of several that do so at once one puts."""
        while True:
            value = self.get(key)
            if value is not None:
                return value
            try:
                self.put_if(key, default)
                return bytes(default)
            except Conflict:
                pass

    def clear(self):
        """Deletes the keys that are there when it begins."""
        for key in self.scan(b""):
            self.pop(key, None)

    def __len__(self):
        return len(self.scan(b""))

    def __iter__(self):
        return iter(self.scan(b""))

    def scan(self, prefix):
        """The keys that begin so."""
        return self._visit(lambda visit: _library.outlast_scan(self._handle, *_key(prefix), visit, None))

    def keys_of(self, member):
        """The keys that a member owns."""
        return self._visit(lambda visit: _library.outlast_keys_of(self._handle, member, visit, None))

    @staticmethod
    def _visit(call):
        keys = []

        def visit(_, key, length):
            keys.append(ctypes.string_at(key, length))
            return 0

        _check(call(_VISIT(visit)))
        return keys

    def adopt(self, key):
        """Makes this member the owner of a key; whether it exists."""
        return _check(_library.outlast_adopt(self._handle, *_key(key))) == _OK

    def add(self, key, delta):
        """Adds to a number, which is 0 at first, and returns it; counts once, whoever dies in the middle."""
        after = ctypes.c_int64()
        _check(_library.outlast_add(self._handle, *_key(key), delta, ctypes.byref(after)))
        return after.value

    def wait(self, key, seconds, newer_than=None, member=None):
        """Sleeps until the key exists, or is newer than a version; None when the time is over. MemberDied if this member is to
        put it and is dead."""
        newer = None if newer_than is None else ctypes.byref(_Version(*newer_than))
        who = -1 if member is None else member
        return _fetch(
            lambda *out: _library.outlast_wait(self._handle, *_key(key), newer, int(seconds * 1000), who, *out, None)
        )

    def lock(self, key, seconds):
        """A lock, for a with statement, which gives the dead member that it was taken from, or None."""
        return _Lock(self, key, seconds)

    def deaths(self):
        """The deaths since the last call."""
        found = []
        while True:
            member, heir = ctypes.c_uint32(), ctypes.c_uint32()
            code = _library.outlast_next_death(
                self._handle, ctypes.byref(self._seen), ctypes.byref(member), ctypes.byref(heir)
            )
            if _check(code) == _ABSENT:
                return found
            found.append(Death(member.value, heir.value))

    def accept_loss(self):
        """Gives up what no copy is left of; how many partitions."""
        count = ctypes.c_size_t()
        _check(_library.outlast_accept_loss(self._handle, ctypes.byref(count)))
        return count.value

    def transaction(self):
        """One attempt, for a with statement: it commits at its end, and raises Aborted if others were faster."""
        return Transaction(self)

    def transact(self, body):
        """Calls body(tx) until it is carried out, and returns what it returned."""
        tx = Transaction(self)
        with tx._kept():
            while True:
                result = body(tx)
                try:
                    tx.commit()
                    return result
                except Aborted:
                    _check(_library.outlast_tx_retry(tx._handle))


    @property
    def is_revoked(self):
        """Whether calls raise Revoked."""
        return _library.outlast_is_revoked(self._handle) != 0

    def revoke(self):
        """Stops all members, as a death does in global mode."""
        _check(_library.outlast_revoke(self._handle))

    def recover(self, procedure):
        """Global mode: all living members call it after Revoked. procedure(tx, deaths) runs again if another one dies; what the
        procedures of all members do happens together, or not at all."""
        while True:
            handle = _new(_library.outlast_recover_begin, self._handle)
            try:
                tx = Transaction.__new__(Transaction)
                tx._handle = _library.outlast_recovery_tx(handle)
                result = procedure(tx, _deaths_of(handle))
            except BaseException:
                _library.outlast_recover_fail(handle)
                raise
            finally:
                tx._handle = None
            try:
                _check(_library.outlast_recover_end(handle))
                return result
            except Revoked:
                pass


def _deaths_of(recovery):
    found, member, heir = [], ctypes.c_uint32(), ctypes.c_uint32()
    while True:
        code = _library.outlast_recovery_death(recovery, len(found), ctypes.byref(member), ctypes.byref(heir))
        if _check(code) == _ABSENT:
            return found
        found.append(Death(member.value, heir.value))


class _Lock:
    def __init__(self, store, key, seconds):
        self._arguments = (store, key, seconds)

    def __enter__(self):
        store, key, seconds = self._arguments
        self._guard, abandoned = ctypes.c_void_p(), ctypes.c_int64()
        _check(
            _library.outlast_lock(
                store._handle, *_key(key), int(seconds * 1000), ctypes.byref(self._guard), ctypes.byref(abandoned)
            )
        )
        return None if abandoned.value < 0 else abandoned.value

    def __exit__(self, *_):
        _check(_library.outlast_unlock(self._guard))


class Transaction:
    """Reads what it likes, and keeps its changes to itself until it is committed."""

    def __init__(self, store):
        self._handle = _new(_library.outlast_tx_begin, store._handle)

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        with self._kept():
            if kind is None:
                self.commit()

    def _kept(self):
        return _Freed(self)

    def commit(self):
        _check(_library.outlast_tx_commit(self._handle))

    def __getitem__(self, key):
        value = self.get(key)
        if value is None:
            raise KeyError(key)
        return value

    def get(self, key, default=None):
        value = _fetch(lambda *out: _library.outlast_tx_get(self._handle, *_key(key), *out))
        return default if value is None else value

    def __setitem__(self, key, value):
        _check(_library.outlast_tx_put(self._handle, *_key(key), bytes(value), len(value)))

    def __delitem__(self, key):
        if _check(_library.outlast_tx_delete(self._handle, *_key(key))) == _ABSENT:
            raise KeyError(key)

    def add(self, key, delta):
        after = ctypes.c_int64()
        _check(_library.outlast_tx_add(self._handle, *_key(key), delta, ctypes.byref(after)))
        return after.value

    def adopt(self, key):
        return _check(_library.outlast_tx_adopt(self._handle, *_key(key))) == _OK


class _Freed:
    """Frees a transaction's handle at the end; what is not committed by then never happens."""

    def __init__(self, tx):
        self._tx = tx

    def __enter__(self):
        return self._tx

    def __exit__(self, *_):
        handle, self._tx._handle = self._tx._handle, None
        _library.outlast_tx_free(handle)
