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
the buffer (in C order), not its type: Store.get_array makes a numpy array of them again, and
Store.get_into fills an array. Other types, for example int, raise TypeError; Store.put_object and
Store.get_object keep any object, by pickle.

A process that `outlast run -n 4 python3 PROGRAM` started is a member of a job of four. A process
that was started alone is the member of a job of one.

Calls release Python's global lock while they run: do not change a buffer while another thread puts
it. Ctrl-C ends a wait for a key, a lock, a message or other members within 0.1 s. After that join,
open, close, leave, recover, snapshots, calls on regions, sends, collective calls and functions of
seats go on in the background, at most until the job's time limit, and may have their effect: a
program that goes on after Ctrl-C opens no store of that name. A child of os.fork is no member:
calls there raise OutlastError.
"""

import pickle
from collections.abc import MutableMapping

from . import _outlast
from ._outlast import (
    Aborted,
    AlreadyOpen,
    Agreement,
    Batch,
    Closed,
    Comm,
    Conflict,
    Corrupt,
    DataLost,
    Death,
    Handle,
    Images,
    Interrupted,
    Lock,
    Locked,
    LockLost,
    MemberDied,
    Message,
    NotJoined,
    OutlastError,
    OutOfMemory,
    Pin,
    ProcFailed,
    Regions,
    Request,
    Restored,
    Revoked,
    RolledBack,
    Seat,
    SeatFailed,
    Snapshots,
    Timeout,
    TooSmall,
    Transaction,
    Window,
    WindowLock,
    __version__,
)

__all__ = [
    "join",
    "Job",
    "Store",
    "Transaction",
    "Death",
    "Handle",
    "Pin",
    "Batch",
    "Lock",
    "Regions",
    "Restored",
    "Images",
    "Snapshots",
    "Seat",
    "Comm",
    "Message",
    "Request",
    "Agreement",
    "Window",
    "WindowLock",
    "OutlastError",
    "Conflict",
    "DataLost",
    "Timeout",
    "Locked",
    "Aborted",
    "Revoked",
    "AlreadyOpen",
    "MemberDied",
    "NotJoined",
    "Closed",
    "OutOfMemory",
    "TooSmall",
    "Corrupt",
    "ProcFailed",
    "Interrupted",
    "LockLost",
    "RolledBack",
    "SeatFailed",
    "__version__",
]


def join(*, time_limit=None, segment_limit=None, domain=None, comm=None, set_errhandlers=False):
    """Joins the job in which this process was started.

    time_limit: for how many seconds calls wait for a living member; 30 by default. segment_limit:
    the most bytes that this member lends. domain: its failure domain, for example rack3/node17. A
    member that does not join within the time limit raises NotJoined at the others.

    Under mpirun: comm is a communicator of mpi4py whose processes are the members, in place of all
    processes. set_errhandlers makes errors of MPI_COMM_WORLD and MPI_COMM_SELF return. MPI is
    called through a plug-in, which `outlast mpi setup` compiles; without it NotJoined says so.
    """
    return Job(
        time_limit=time_limit,
        segment_limit=segment_limit,
        domain=domain,
        comm=comm,
        set_errhandlers=set_errhandlers,
    )


class Job(_outlast.Job):
    """The membership of this process; made by join(). It ends with the with statement, or with
    leave()."""

    __slots__ = ()

    def open(
        self,
        replicas=0,
        allow_fewer=False,
        expected_keys=0,
        checksums=False,
        global_mode=False,
        salvage=False,
        name="",
        *,
        partitions=0,
        sole_writers=False,
        repair_share=0,
        slab_len_max=0,
    ):
        """Opens a store, which is empty. All living members call it, with equal options, and the
        call waits for them. 0 is the default of an option.

        replicas: the replicas of each value. allow_fewer: open with fewer replicas if the job has
        too few members. expected_keys: a hint, the index is made for so many keys, and grows.
        checksums: values have checksums. global_mode: all members stop at a death and recover
        together. salvage: survivors read the memory of the dead of their machine.

        name: a job may have several stores at a time, each under its own name. A library that opens
        a store inside of a program gives it a name of its own. A store that this member has open
        raises AlreadyOpen. After close() a store can be opened again under its name, and is empty.

        partitions: the number of partitions. sole_writers: with global_mode, each key is written
        through a single handle between two recoveries, which makes puts cheaper. repair_share:
        percent of a processor that a member spends on repair. slab_len_max: bytes that a replica
        divides into blocks at a time.
        """
        return Store(
            self,
            replicas,
            allow_fewer,
            expected_keys,
            checksums,
            global_mode,
            salvage,
            name,
            partitions,
            sole_writers,
            repair_share,
            slab_len_max,
        )


class Store(_outlast.Store, MutableMapping):
    """A dict that survives deaths of members; made by Job.open. Iterating is no snapshot: it lists
    the keys that exist during the whole iteration, and perhaps other keys."""

    __slots__ = ()

    # MutableMapping makes the following calls in several steps. Another member may change the key
    # between the steps, so they are written anew.

    def popitem(self):
        """Deletes any key and returns it with its value. Raises KeyError if the store is empty."""
        for key in self.scan():
            value = self.pop(key, None)
            if value is not None:
                return key, value
        raise KeyError("the store is empty")

    def clear(self):
        """Deletes the keys that exist when the call begins."""
        for key in self.scan():
            self.pop(key, None)

    def get_array(self, key, dtype, shape=-1):
        """The value of a key as a new numpy array of this type and shape; by default it has one
        dimension. Raises KeyError if the key does not exist, and ValueError if the value has
        another length than the array."""
        import numpy

        if shape == -1:
            value, dtype = self[key], numpy.dtype(dtype)
            if dtype.hasobject:
                raise TypeError("an array of Python objects has no bytes; use get_object")
            return numpy.frombuffer(bytearray(value), dtype)
        array = numpy.empty(shape, dtype)
        try:
            found = self.get_into(key, array)
        except TooSmall as error:
            raise ValueError(f"the array has {array.nbytes} bytes: {error}") from None
        if found is None:
            raise KeyError(key)
        if found != array.nbytes:
            raise ValueError(f"the value has {found} bytes, and the array {array.nbytes}")
        return array

    def put_object(self, key, value):
        """Puts any object that pickle knows, and returns the new version."""
        return self.put(key, pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL))

    def get_object(self, key, default=None):
        """The object that put_object has put, or the default if the key does not exist. Unpickling
        runs code that the value names: use it for values of this program only."""
        value = self.get(key)
        return default if value is None else pickle.loads(value)
