"""Outlast for Python: a dict in the memories of the processes of a parallel program, which outlasts
the death of any of them.

    import outlast
    with outlast.join() as job, job.open(replicas=3) as store:
        store["result/9"] = b"forty-two"
        store.add("tasks-left", -1)
        with store.transaction() as tx:       # both values or none
            tx["a"], tx["b"] = b"1", b"2"

A key is a str, which is stored as UTF-8, or bytes. A value is bytes. In the place of bytes any
buffer is accepted: bytearray, memoryview, array.array, a numpy array. The store keeps the bytes of
the buffer (in C order), not its type: numpy.frombuffer(store[key]) makes an array of them. Other
types, for example int, raise TypeError.

A process that `outlast run -n 4 python3 PROGRAM` started is a member of a job of four. A process
that was started alone is the member of a job of one.

The module calls the library liboutlast_c. It is searched for in this order: the path in
OUTLAST_LIBRARY, the folder of this file, target/release and target/debug of the folders above, the
folders of the system's loader. Calls release Python's global lock while they run.
"""

import ctypes
import ctypes.util
import os
import pathlib
import re
import time
from collections.abc import MutableMapping

__all__ = [
    "join",
    "Job",
    "Store",
    "Transaction",
    "Death",
    "OutlastError",
    "Conflict",
    "DataLost",
    "Timeout",
    "Locked",
    "Aborted",
    "Revoked",
    "AlreadyOpen",
    "MemberDied",
]


class OutlastError(Exception):
    """A call failed. The message says why and what to do; `code` is the code of outlast.h."""

    code = None


class DataLost(OutlastError):
    """All replicas of the key's partition are lost. Store.accept_loss makes it usable again."""


class Timeout(OutlastError):
    """A living member did not answer in time. The call may have had its effect or not."""


class Conflict(OutlastError):
    """The condition of the call does not hold. Nothing was changed."""


class Aborted(OutlastError):
    """The transaction conflicts with another transaction. Nothing was changed. Repeat it."""


class Locked(OutlastError):
    """Another holder kept the lock until the time limit."""


class Revoked(OutlastError):
    """Global mode: a member has died. All living members have to call Store.recover."""


class AlreadyOpen(OutlastError):
    """This member has the store of this name open already. Nothing was changed."""


class MemberDied(OutlastError):
    """Store.wait: the named member is dead and has not put the key."""


_OK, _ABSENT, _DIED, _TOO_SMALL = 0, 1, 2, -10
_ERRORS = {
    -3: DataLost,
    -4: Timeout,
    -5: Conflict,
    -6: Aborted,
    -8: Locked,
    -16: Revoked,
    -18: AlreadyOpen,
}


class _Version(ctypes.Structure):
    _fields_ = [("counter", ctypes.c_uint64), ("writer", ctypes.c_uint32)]


class _Options(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        ("replicas", ctypes.c_uint32),
        ("allow_fewer", ctypes.c_uint32),
        ("expected_keys", ctypes.c_uint64),
        ("checksums", ctypes.c_uint32),
        ("global_mode", ctypes.c_uint32),
        ("salvage", ctypes.c_uint32),
        ("sole_writers", ctypes.c_uint32),
        ("name", ctypes.c_char_p),
    ]


_VISIT = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)


def _find_library():
    """The path of the library; the order of the search is in the documentation of the module."""
    named = os.environ.get("OUTLAST_LIBRARY")
    if named:
        return named
    here = pathlib.Path(__file__).resolve().parent
    builds = ("release", "debug")
    folders = [here] + [above / "target" / build for above in here.parents for build in builds]
    for folder in folders:
        if (folder / "liboutlast_c.so").is_file():
            return str(folder / "liboutlast_c.so")
    found = ctypes.util.find_library("outlast_c")
    if found is None:
        raise ImportError(
            "liboutlast_c.so was not found: build it with `cargo build --release -p outlast-c`, "
            "or set OUTLAST_LIBRARY"
        )
    return found


def _load_library():
    """The library, with the types of all calls that this module uses."""
    library = ctypes.CDLL(_find_library())
    p, size, bytes_ = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p
    key = [bytes_, size]
    out = [p, size, ctypes.POINTER(size)]
    version = ctypes.POINTER(_Version)
    number = ctypes.POINTER(ctypes.c_int64)
    member = ctypes.POINTER(ctypes.c_uint32)
    handle = ctypes.POINTER(p)
    calls = {
        "join": [handle], "leave": [p],
        "open": [p, ctypes.POINTER(_Options), handle], "close": [p],
        "put": [p, *key, bytes_, size, version],
        "put_if": [p, *key, bytes_, size, version, version],
        "get": [p, *key, *out, version], "exists": [p, *key], "delete": [p, *key],
        "add": [p, *key, ctypes.c_int64, number],
        "wait": [p, *key, version, ctypes.c_uint64, ctypes.c_int64, *out, version],
        "scan": [p, *key, _VISIT, p], "keys_of": [p, ctypes.c_uint32, _VISIT, p],
        "adopt": [p, *key],
        "next_death": [p, ctypes.POINTER(ctypes.c_uint64), member, member],
        "accept_loss": [p, ctypes.POINTER(size)],
        "lock": [p, *key, ctypes.c_uint64, handle, number], "unlock": [p],
        "tx_begin": [p, handle], "tx_get": [p, *key, *out], "tx_put": [p, *key, bytes_, size],
        "tx_delete": [p, *key], "tx_add": [p, *key, ctypes.c_int64, number],
        "tx_adopt": [p, *key], "tx_commit": [p], "tx_abort": [p], "tx_retry": [p],
        "revoke": [p], "is_revoked": [p],
        "recover_begin": [p, handle], "recover_end": [p], "recover_fail": [p],
        "recovery_death": [p, size, member, member],
    }  # fmt: skip
    for name, arguments in calls.items():
        call = getattr(library, "outlast_" + name)
        call.argtypes, call.restype = arguments, ctypes.c_int
    for name, arguments, result in [
        ("me", [p], ctypes.c_uint32), ("members", [p], ctypes.c_uint32),
        ("living", [p], ctypes.c_uint32), ("epoch", [p], ctypes.c_uint64),
        ("heir_of", [p, ctypes.c_uint32], ctypes.c_uint32), ("error", [], ctypes.c_char_p), ("tx_free", [p], None), ("recovery_tx", [p], p),
    ]:  # fmt: skip
        call = getattr(library, "outlast_" + name)
        call.argtypes, call.restype = arguments, result
    return library


_library = _load_library()


def _check(code):
    """Returns the code of a call that succeeded; raises the exception of an error."""
    if code >= 0:
        return code
    error = _ERRORS.get(code, OutlastError)(_library.outlast_error().decode(errors="replace"))
    error.code = code
    raise error


def _bytes(what, data, advice):
    """The bytes of a buffer, in C order, as an object that ctypes can pass."""
    if isinstance(data, bytes):
        return data
    try:
        view = memoryview(data)
    except TypeError:
        kind = type(data).__name__
        raise TypeError(f"{what} must be bytes or another buffer, not {kind}; {advice}") from None
    # The names of fields stand between colons in the format of a record.
    if "O" in re.sub(":[^:]*:", "", view.format):
        raise TypeError(f"{what} must have bytes of its own, not Python objects; use pickle.dumps")
    return view.tobytes()


def _key(key):
    """A key and its length, as the library takes them."""
    if isinstance(key, str):
        key = key.encode()
    else:
        key = _bytes("a key", key, "use a str, for example str(key)")
    return key, len(key)


def _value(value):
    """A value and its length, as the library takes them."""
    if isinstance(value, str):
        advice = "use value.encode()"
    elif isinstance(value, int):
        advice = "use value.to_bytes, or Store.add for a number that members count together"
    else:
        advice = "use bytes(value) or pickle.dumps(value)"
    value = _bytes("a value", value, advice)
    return value, len(value)


def _fetch(call):
    """Makes a call that returns a value, with a buffer of sufficient size; None if absent."""
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
            raise MemberDied("the member is dead and has not put the key")
        return buffer.raw[: length.value] if code == _OK else None


def _new(call, *arguments):
    """The handle that a call makes."""
    handle = ctypes.c_void_p()
    _check(call(*arguments, ctypes.byref(handle)))
    return handle


def join():
    """Joins the job in which this process was started."""
    return Job()


class Death:
    """The death of a member; the member `heir` takes over from it."""

    def __init__(self, member, heir):
        self.member, self.heir = member, heir

    def __repr__(self):
        return f"Death(member={self.member}, heir={self.heir})"


class Job:
    """The membership of this process. It ends with the with statement, or with leave()."""

    def __init__(self):
        self._handle = _new(_library.outlast_join)

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        # After an exception the process does not leave: when it ends, the others see a death.
        if kind is None:
            self.leave()

    def leave(self):
        """Ends the membership. Close the store before."""
        handle, self._handle = self._handle, None
        _check(_library.outlast_leave(handle))

    @property
    def me(self):
        """The number of this member, from 0."""
        return _library.outlast_me(self._handle)

    @property
    def members(self):
        """The number of members with which the job began."""
        return _library.outlast_members(self._handle)

    @property
    def living(self):
        """The number of members that are not known to be dead."""
        return _library.outlast_living(self._handle)

    def open(
        self,
        replicas=0,
        allow_fewer=False,
        expected_keys=0,
        checksums=False,
        global_mode=False,
        salvage=False,
        name="",
    ):
        """Opens a store, which is empty. All living members call it, with equal options, and the
        call waits for them. 0 is the default of an option.

        replicas: the replicas of each value. allow_fewer: open with fewer replicas if the job has
        too few members. expected_keys: the number of keys for which the index is made. checksums:
        values have checksums. global_mode: all members stop at a death and recover together.
        salvage: survivors read the memory of the dead of their machine.

        name: a job may have several stores at a time, each under its own name. A library that opens
        a store inside of a program gives it a name of its own. A store that this member has open
        raises AlreadyOpen. After close() a store can be opened again under its name, and is empty.
        """
        if "\0" in name:
            raise ValueError("the name of a store cannot contain a null character")
        options = (replicas, allow_fewer, expected_keys, checksums, global_mode, salvage)
        size = ctypes.sizeof(_Options)
        return Store(self, _Options(size, *options, 0, name.encode()))


class Store(MutableMapping):
    """A dict that survives deaths of members. Iterating is no snapshot: it lists the keys that
    exist during the whole iteration, and perhaps other keys."""

    def __init__(self, job, options):
        self._handle = _new(_library.outlast_open, job._handle, ctypes.byref(options))
        self._seen = ctypes.c_uint64(_library.outlast_epoch(self._handle))

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        if kind is None:
            self.close()

    def close(self):
        """Closes the store, after waiting for a bounded time until all living members close it.
        Its content is gone."""
        handle, self._handle = self._handle, None
        _check(_library.outlast_close(handle))

    def get_versioned(self, key):
        """The value and its version, or None if the key does not exist."""
        version = _Version()
        place = ctypes.byref(version)
        key = _key(key)
        value = _fetch(lambda *out: _library.outlast_get(self._handle, *key, *out, place))
        return None if value is None else (value, (version.counter, version.writer))

    def __getitem__(self, key):
        found = self.get_versioned(key)
        if found is None:
            raise KeyError(key)
        return found[0]

    def __setitem__(self, key, value):
        _check(_library.outlast_put(self._handle, *_key(key), *_value(value), None))

    def put_if(self, key, value, version=None):
        """Puts a value if the key has this version, or, if it is None, if the key does not exist;
        otherwise raises Conflict. Returns the new version."""
        new = _Version()
        place = ctypes.byref(new)
        expected = None if version is None else ctypes.byref(_Version(*version))
        put = _library.outlast_put_if
        _check(put(self._handle, *_key(key), *_value(value), expected, place))
        return new.counter, new.writer

    def __delitem__(self, key):
        if _check(_library.outlast_delete(self._handle, *_key(key))) == _ABSENT:
            raise KeyError(key)

    def __contains__(self, key):
        return _check(_library.outlast_exists(self._handle, *_key(key))) == _OK

    # MutableMapping makes the following calls in several steps. Another member may change the key
    # between the steps, so they are written anew.

    def pop(self, key, *default):
        """Deletes a key and returns its value. If several members call it at once, a single member
        gets the value. Raises KeyError if the key does not exist and there is no default."""

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
        """Deletes any key and returns it with its value. Raises KeyError if the store is empty."""
        for key in self.scan(b""):
            value = self.pop(key, None)
            if value is not None:
                return key, value
        raise KeyError("the store is empty")

    def setdefault(self, key, default):
        """Returns the value of a key, and puts the default before if the key does not exist. If
        several members call it at once, the default of a single member is put."""
        default = _value(default)[0]
        while True:
            value = self.get(key)
            if value is not None:
                return value
            try:
                self.put_if(key, default)
                return default
            except Conflict:
                pass

    def clear(self):
        """Deletes the keys that exist when the call begins."""
        for key in self.scan(b""):
            self.pop(key, None)

    def __len__(self):
        return len(self.scan(b""))

    def __iter__(self):
        return iter(self.scan(b""))

    def scan(self, prefix):
        """The keys that begin with the prefix."""
        prefix = _key(prefix)
        return self._visit(
            lambda visit: _library.outlast_scan(self._handle, *prefix, visit, None)
        )

    def keys_of(self, member):
        """The keys that a member owns."""
        return self._visit(
            lambda visit: _library.outlast_keys_of(self._handle, member, visit, None)
        )

    @staticmethod
    def _visit(call):
        keys = []

        def visit(_, key, length):
            keys.append(ctypes.string_at(key, length))
            return 0

        _check(call(_VISIT(visit)))
        return keys

    def adopt(self, key):
        """Makes this member the owner of a key. Returns whether the key exists."""
        return _check(_library.outlast_adopt(self._handle, *_key(key))) == _OK

    def add(self, key, delta):
        """Adds to the number that a key holds, 0 if the key does not exist, and returns the sum.
        The addition happens once, whichever member dies during it."""
        after = ctypes.c_int64()
        _check(_library.outlast_add(self._handle, *_key(key), delta, ctypes.byref(after)))
        return after.value

    def wait(self, key, seconds, newer_than=None, member=None):
        """Sleeps until the key exists, or has a newer version than newer_than, and returns its
        value. Returns None at the time limit. Raises MemberDied if the member `member` is dead and
        has not put the key."""
        newer = None if newer_than is None else ctypes.byref(_Version(*newer_than))
        arguments = (*_key(key), newer, int(seconds * 1000), -1 if member is None else member)
        return _fetch(lambda *out: _library.outlast_wait(self._handle, *arguments, *out, None))

    def lock(self, key, seconds):
        """The lock of a key, for a with statement, which gives the dead member that held the lock,
        or None. The with statement raises Locked at the time limit."""
        return _Lock(self, key, seconds)

    def deaths(self):
        """The deaths since the last call, in their order. If an heir dies, the members that it was
        to take over from are in the list again, with their new heir: a loop that adopts the keys of
        each member whose heir it is adopts all keys."""
        found = []
        while True:
            member, heir = ctypes.c_uint32(), ctypes.c_uint32()
            code = _library.outlast_next_death(
                self._handle, ctypes.byref(self._seen), ctypes.byref(member), ctypes.byref(heir)
            )
            if _check(code) == _ABSENT:
                return found
            found.append(Death(member.value, heir.value))

    def heir_of(self, member):
        """The member that takes over from a dead member."""
        return _library.outlast_heir_of(self._handle, member)

    def accept_loss(self):
        """Gives up lost data: partitions of which no replica is left become empty and usable again.
        Returns the number of partitions."""
        count = ctypes.c_size_t()
        _check(_library.outlast_accept_loss(self._handle, ctypes.byref(count)))
        return count.value

    def transaction(self):
        """A transaction for a with statement, which commits it at its end. Raises Aborted after a
        conflict with another transaction."""
        return Transaction(self)

    def transact(self, body, seconds=30):
        """Runs body(tx) in a transaction and commits it, again after each conflict, for at most
        this many seconds; then raises Aborted, and nothing was changed. Returns the result of
        body."""
        tx = Transaction(self)
        until = time.monotonic() + seconds
        with _Freed(tx):
            while True:
                result = body(tx)
                try:
                    tx.commit()
                    return result
                except Aborted:
                    if time.monotonic() >= until:
                        raise
                    _check(_library.outlast_tx_retry(tx._handle))

    @property
    def is_revoked(self):
        """Whether calls raise Revoked now."""
        return _library.outlast_is_revoked(self._handle) != 0

    def revoke(self):
        """Stops all members, as a death does in global mode."""
        _check(_library.outlast_revoke(self._handle))

    def recover(self, procedure):
        """Global mode: recovers from deaths. All living members call it after Revoked.
        procedure(tx, deaths) runs again if another member dies. The changes of the procedures of
        all members take effect together, or none does. Returns the result of procedure."""
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
    """The deaths since the last recovery."""
    found, member, heir = [], ctypes.c_uint32(), ctypes.c_uint32()
    places = ctypes.byref(member), ctypes.byref(heir)
    while True:
        if _check(_library.outlast_recovery_death(recovery, len(found), *places)) == _ABSENT:
            return found
        found.append(Death(member.value, heir.value))


class _Lock:
    """The context manager of Store.lock."""

    def __init__(self, store, key, seconds):
        self._arguments = (store, key, seconds)

    def __enter__(self):
        store, key, seconds = self._arguments
        self._guard, abandoned = ctypes.c_void_p(), ctypes.c_int64()
        places = ctypes.byref(self._guard), ctypes.byref(abandoned)
        _check(_library.outlast_lock(store._handle, *_key(key), int(seconds * 1000), *places))
        return None if abandoned.value < 0 else abandoned.value

    def __exit__(self, *_):
        _check(_library.outlast_unlock(self._guard))


class Transaction:
    """A transaction: no other member sees its changes before it is committed."""

    def __init__(self, store):
        self._handle = _new(_library.outlast_tx_begin, store._handle)

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        with _Freed(self):
            if kind is None:
                self.commit()

    def commit(self):
        """Commits: all changes take effect together, or none does and Aborted is raised."""
        _check(_library.outlast_tx_commit(self._handle))

    def __getitem__(self, key):
        value = self.get(key)
        if value is None:
            raise KeyError(key)
        return value

    def get(self, key, default=None):
        """The value of a key as the transaction sees it."""
        key = _key(key)
        value = _fetch(lambda *out: _library.outlast_tx_get(self._handle, *key, *out))
        return default if value is None else value

    def __setitem__(self, key, value):
        _check(_library.outlast_tx_put(self._handle, *_key(key), *_value(value)))

    def __delitem__(self, key):
        if _check(_library.outlast_tx_delete(self._handle, *_key(key))) == _ABSENT:
            raise KeyError(key)

    def add(self, key, delta):
        """Adds to the number that a key holds, 0 if the key does not exist, and returns the sum."""
        after = ctypes.c_int64()
        _check(_library.outlast_tx_add(self._handle, *_key(key), delta, ctypes.byref(after)))
        return after.value

    def adopt(self, key):
        """Makes this member the owner of a key. Returns whether the key exists."""
        return _check(_library.outlast_tx_adopt(self._handle, *_key(key))) == _OK


class _Freed:
    """Frees the handle of a transaction at the end, which aborts it if it was not committed."""

    def __init__(self, tx):
        self._tx = tx

    def __enter__(self):
        return self._tx

    def __exit__(self, *_):
        handle, self._tx._handle = self._tx._handle, None
        _library.outlast_tx_free(handle)
