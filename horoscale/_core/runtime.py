"""Runtime: this process's membership in a job. Also queries that need no job."""

from __future__ import annotations

import contextlib
import json
import os
import threading
from collections.abc import Hashable, Sequence
from typing import Any
from weakref import WeakSet

from horoscale._core._binding import ffi, lib
from horoscale._core._in_flight import InFlight, Template
from horoscale._core.errors import c_string, check, last_error, text
from horoscale._core.handle import Handle
from horoscale._core.memory import JoinedBuffer, OwnedBuffer
from horoscale._core.message import MessageArg, MessageView, PreparedMessage, ThreadsMessageRoom
from horoscale._core.request import Device, Prepared, Request, Requests, Signature, prepare
from horoscale._core.types import DataType, Encoding, OpKind, ReduceOp, TensorArg, Topology


class Runtime:
    """This process's membership in a job. Any thread may use it."""

    def __init__(self, pointer: object) -> None:
        """Wrap the owner of hs_init()'s result; users call Runtime.init()."""
        self._pointer = pointer
        self._in_flight = InFlight(pointer, self.address, Handle)
        self._requests = Requests()
        self.templates: Prepared[Template] = Prepared()
        self.messages: Prepared[PreparedMessage] = Prepared()
        self._message = ThreadsMessageRoom()
        topology = ffi.new("hs_topology *")
        check(lib.hs_get_topology(self._pointer, topology))
        self.topology = Topology(
            rank=topology.rank,
            size=topology.size,
            local_rank=topology.local_rank,
            local_size=topology.local_size,
            cross_rank=topology.cross_rank,
            cross_size=topology.cross_size,
            homogeneous=bool(topology.homogeneous),
        )
        _live.add(self)

    @classmethod
    def init(
        cls,
        rank: int | None = None,
        size: int | None = None,
        rendezvous: str | None = None,
        serve_rendezvous: bool | None = None,
        secret: str | None = None,
        ranks: Sequence[int] = (),
        mpi_comm: int = 0,
        view: int = 0,
    ) -> Runtime:
        """Join the job and connect to the other ranks. None means: from the variables or from MPI.

        `ranks` are the participating ranks, renumbered in this order; `mpi_comm` is the handle of
        the communicator with the participating ranks. `view` is the number of an elastic job's
        view: ranks that start in different views never connect.

        Raises ValueError (a variable does not parse) or HorovodInternalError (ranks did not arrive
        in time, wrong secret, a system call failed).
        """
        options = ffi.new("hs_init_options *")
        strings = c_string(rendezvous, "rendezvous"), c_string(secret, "secret")
        options.struct_size = ffi.sizeof("hs_init_options")
        options.rank = -1 if rank is None else rank
        options.size = -1 if size is None else size
        options.rendezvous, options.secret = strings
        options.serve_rendezvous = -1 if serve_rendezvous is None else int(serve_rendezvous)
        chosen = ffi.new("int32_t[]", list(ranks))
        options.ranks, options.num_ranks = chosen, len(chosen)
        options.mpi_comm = mpi_comm
        options.view = view
        thread = _InitThread(options, (strings, chosen))
        thread.start()
        thread.join()
        if thread.error is not None:
            raise thread.error
        return cls(thread.pointer)

    @property
    def address(self) -> int:
        """The address of the hs_runtime, for kernels that call the library directly."""
        return int(ffi.cast("uintptr_t", self._pointer))

    @property
    def over_mpi(self) -> bool:
        """Whether the ranks connected through MPI."""
        return bool(lib.hs_over_mpi(self._pointer))

    def use_communicator(self, ranks: Sequence[int], mpi_comm: int) -> None:
        """Run MPI's collectives of a set of these ranks on a duplicate of a communicator.

        All of the ranks, which must be exactly the communicator's, call it before they add the set.
        Waits for them. `mpi_comm` is its handle.
        """
        check(lib.hs_use_communicator(self._pointer, list(ranks), len(ranks), mpi_comm))

    def shutdown(self) -> None:
        """Leave the job: pending operations fail. Does not wait for other ranks."""
        check(lib.hs_shutdown(self._pointer))
        self._in_flight.reap()

    def shutdown_failed(self, reason: str) -> None:
        """Leave the job because this rank failed. The peers' errors will contain the reason."""
        check(lib.hs_shutdown_failed(self._pointer, c_string(reason.replace("\0", ""), "reason")))
        self._in_flight.reap()

    def enqueue(
        self,
        kind: OpKind,
        *,
        tensors: Sequence[TensorArg] = (),
        name: str | None = None,
        process_set: int = 0,
        reduce_op: ReduceOp = ReduceOp.SUM,
        prescale: float = 1.0,
        postscale: float = 1.0,
        root: int = -1,
        splits: Sequence[int] | None = None,
        ranks: Sequence[int] | None = None,
        target: int = -1,
        priority: int = 0,
        will_wait: bool = False,
        encoding: Encoding = Encoding.NONE,
        sealed: bool = False,
        set_flags: int = 0,
        keep_alive: object = None,
        device: Device | None = None,
    ) -> Handle:
        """Enqueue an operation and return immediately; see hs_request in the C header.

        `keep_alive` is held until the operation is done: the owners of the tensors' memory.
        `device` is the device of that memory, if it isn't the host's.
        `set_flags` are SetFlags. `will_wait` promises that this thread calls Handle.wait() next.
        If `sealed`, modification between hosts makes the operation fail. Raises ValueError,
        DuplicateNameError, RankFailedError, or HorovodInternalError after shutdown.
        """
        signature = Signature(
            kind,
            tuple([(tensor.dtype, tensor.shape) for tensor in tensors]),
            name,
            process_set,
            reduce_op,
            prescale,
            postscale,
            root,
            None if splits is None else tuple(splits),
            None if ranks is None else tuple(ranks),
            target,
            priority,
            will_wait,
            encoding,
            sealed,
            set_flags,
        )
        request = self._requests.get(signature)
        for i, tensor in enumerate(tensors):
            request.place(i, tensor.in_ptr, tensor.out_ptr, tensor.out_rows)
        request.on_device(device)
        return self._in_flight.enqueue(request.address, keep_alive)

    def start(self, request: Request, keep_alive: object, wake: bool) -> Handle:
        """Enqueue a described operation whose memory has been placed.

        Without `wake` it is not started until notify(), the next start with it, or a wait.
        """
        request.pointer.will_wait = not wake
        return self._in_flight.enqueue(request.address, keep_alive)

    def prepare(self, key: Hashable, signature: Signature, rows: int = 0) -> Template:
        """Return a template of an operation, and store it in `templates` under a key.

        `rows` is the number of rows that fit, if the input does not determine it.
        """
        return self.templates.keep(key, prepare(self._in_flight, signature, rows))

    def start_message(
        self, message: MessageArg, is_send: bool, will_wait: bool, keep_alive: object
    ) -> Handle:
        """Start a send or a receive and return immediately; see hs_message in the C header.

        `keep_alive` is held until it is done: the owner of the memory. `will_wait` promises that
        this thread calls Handle.wait() next. Raises as enqueue() does.
        """
        room = self._message
        room.describe(message, will_wait)
        start = self._in_flight.send if is_send else self._in_flight.receive
        return start(room.address, keep_alive)

    def prepare_message(self, key: Hashable, message: MessageArg, is_send: bool) -> PreparedMessage:
        """Return a starter of such messages in host memory, stored in `messages` under a key."""
        flight = self._in_flight
        start, run = (
            (flight.send, flight.run_send) if is_send else (flight.receive, flight.run_receive)
        )
        return self.messages.keep(key, PreparedMessage(message, start, run))

    def start_receive(self, message: MessageArg, keep_alive: object, handles: list[Handle]) -> None:
        """Start a receive and append its handle to `handles`.

        Ctrl-C cannot separate the two: it is raised before or after both.
        """
        room = self._message
        room.describe(message, True)
        handles.extend(map(self._in_flight.receive, (room.address,), (keep_alive,)))

    def run_message(self, message: MessageArg, is_send: bool, keep_alive: object) -> int:
        """Run a send or a receive and wait for it; return its result: the rank of the sender.

        On a device, its stream waits for the rest: see Handle.wait_on_stream().
        """
        handle = self.start_message(message, is_send, True, keep_alive)
        if message.device is None:
            handle.wait()
        else:
            handle.wait_on_stream(message.device.stream)
        return handle.result()

    def receive_view(self, message: MessageArg, nbytes: int) -> MessageView:
        """Wait for a message and return a view of it, in the sender's memory if accessible."""
        room = self._message
        room.describe(message, True, is_view=True)
        handle = None
        try:
            handle = self._in_flight.receive_view(room.address, None)
            handle.wait()
        except BaseException:  # Ctrl-C: the message is released when it arrives
            if handle is not None:
                lib.hs_release(self._pointer, handle.pointer)
            raise
        return MessageView(self._pointer, handle, nbytes)

    def notify(self) -> None:
        """Start operations that were enqueued without waking the engine."""
        check(lib.hs_notify(self._pointer))

    def process_sets(self) -> dict[int, list[int]]:
        """Return the registered process sets: id and global ranks, in the set's order."""
        found = {}
        for set_id in _int_list(lambda *room: lib.hs_process_sets(self._pointer, *room)):
            with contextlib.suppress(ValueError):  # it has been removed in the meantime
                found[set_id] = _int_list(
                    lambda *room, i=set_id: lib.hs_process_set_ranks(self._pointer, i, *room)
                )
        return found

    def shared_alloc(self, nbytes: int) -> OwnedBuffer:
        """Allocate memory that the host's other ranks can access: zeroed, 64-byte aligned."""
        if nbytes < 0:
            raise ValueError(f"can't allocate {nbytes} bytes: an extent is negative")
        out = ffi.new("void **")
        check(lib.hs_shared_alloc(self._pointer, nbytes, out))
        return OwnedBuffer.of_shared(self._pointer, out[0], nbytes)

    def shared_offset(self, memory: OwnedBuffer) -> int:
        """Return the offset at which the host's other ranks find such memory; -1 if none can."""
        out = ffi.new("int64_t *")
        address = ffi.cast("void *", memory.pointer)
        check(lib.hs_shared_offset(self._pointer, address, memory.nbytes, out))
        return int(out[0])

    def shared_join(
        self, ranks: Sequence[int], offsets: Sequence[int], nbytes: int
    ) -> JoinedBuffer:
        """Map `nbytes` of each of these ranks, at its offset, as one contiguous block.

        Raises ValueError if a rank's memory is not accessible or does not consist of whole pages,
        and HorovodInternalError if a system call fails.
        """
        out = ffi.new("void **")
        check(lib.hs_shared_join(self._pointer, ranks, offsets, len(ranks), nbytes, out))
        return JoinedBuffer(out[0], len(ranks) * nbytes)

    def timeline_start(self, path: str, mark_cycles: bool = False) -> None:
        """Start to write this rank's operations to `path` as Chrome trace JSON."""
        check(lib.hs_timeline_start(self._pointer, c_string(path, "path"), mark_cycles))

    def timeline_stop(self) -> None:
        """Complete the file of timeline_start()."""
        check(lib.hs_timeline_stop(self._pointer))

    def metrics(self) -> dict[str, Any]:
        """Return the counters and timings of this rank."""
        out = ffi.new("char **")
        check(lib.hs_metrics(self._pointer, out))
        metrics: dict[str, Any] = json.loads(text(ffi.gc(out[0], lib.hs_free)))
        return metrics

    def save_residuals(self, process_set: int) -> bytes:
        """Return the residuals of lossy encodings for a set's tensors on this rank."""
        data, size = ffi.new("void **"), ffi.new("size_t *")
        check(lib.hs_residuals_save(self._pointer, process_set, data, size))
        return bytes(ffi.buffer(ffi.gc(data[0], lib.hs_free), size[0]))

    def load_residuals(self, process_set: int, saved: bytes) -> bool:
        """Load the result of save_residuals(); return False if it is another rank's or set's.

        Raises ValueError if it is invalid.
        """
        code = lib.hs_residuals_load(self._pointer, process_set, saved, len(saved))
        if code == lib.HS_MISMATCH:
            return False
        check(code)
        return True

    def scale_residuals(self, process_set: int, factor: float) -> None:
        """Multiply the residuals, for example if gradients are rescaled; 0 clears them."""
        check(lib.hs_residuals_scale(self._pointer, process_set, factor))

    def waiting_seconds(self) -> float:
        """Return the total time for which threads of this rank have waited for operations."""
        out = ffi.new("double *")
        check(lib.hs_waiting_seconds(self._pointer, out))
        return float(out[0])

    def _disown(self) -> None:
        # Freeing would join a thread that does not exist in a forked child.
        self._pointer = ffi.gc(self._pointer, None)


class _InitThread(threading.Thread):
    """Calls hs_init(), which may wait long for other ranks, so that Ctrl-C need not wait for it.

    If nothing waits for the thread any longer, its runtime is freed with it.
    """

    def __init__(self, options: object, keep_alive: object) -> None:
        super().__init__(name="horoscale-init", daemon=True)
        self._options = options
        self._keep_alive = keep_alive  # memory to which the options point
        self.pointer: object = None
        self.error: Exception | None = None

    def run(self) -> None:
        out = ffi.new("hs_runtime **")
        code = lib.hs_init(self._options, out)
        if code == lib.HS_OK:
            self.pointer = ffi.gc(out[0], lib.hs_runtime_free)
        else:
            self.error = last_error(code)


_live: WeakSet[Runtime] = WeakSet()


def _disown_all() -> None:
    for runtime in _live:
        runtime._disown()


os.register_at_fork(after_in_child=_disown_all)


def _int_list(query: Any) -> list[int]:
    """Call a function that fills (values, capacity, count), with increasing capacity."""
    capacity = 64
    while True:
        values = ffi.new("int32_t[]", capacity)
        count = ffi.new("int32_t *")
        check(query(values, capacity, count))
        if count[0] <= capacity:
            return list(values[0 : count[0]])
        capacity = int(count[0])


def library_version() -> str:
    """Return the version of the C++ library."""
    return text(lib.hs_version())


def build_info() -> dict[str, Any]:
    """Return the features of this build on this machine, or why they are unavailable."""
    info: dict[str, Any] = json.loads(text(lib.hs_build_info()))
    return info


def config_variables() -> list[dict[str, Any]]:
    """Return the table of configuration variables: name, type, default, doc."""
    variables: list[dict[str, Any]] = json.loads(text(lib.hs_config_variables()))
    return variables


def check_reduction(dtype: DataType, op: ReduceOp) -> None:
    """Raise ValueError if the reduction is not defined for the type (Average of bool)."""
    check(lib.hs_check_reduction(dtype, op))
