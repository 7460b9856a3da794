"""Runtime: this process' part of a job, and the questions that need no job."""

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
    """This process' part of a job. Any thread may use it."""

    def __init__(self, pointer: object) -> None:
        """Take what owns hs_init()'s result; users call Runtime.init()."""
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
        """Join the job and meet its other ranks; what is None comes from the variables or from MPI.

        `ranks` are those that take part, numbered anew in this order; `mpi_comm` is the handle of
        the communicator whose ranks do. `view` is the number of an elastic job's view: starts of
        different ones never meet.

        Raises ValueError (a variable does not parse) or HorovodInternalError (ranks did not come in
        time, wrong secret, the system refused).
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
        """Where the hs_runtime lies, for a kernel that calls the library by itself."""
        return int(ffi.cast("uintptr_t", self._pointer))

    @property
    def over_mpi(self) -> bool:
        """Whether the ranks met over MPI."""
        return bool(lib.hs_over_mpi(self._pointer))

    def use_communicator(self, ranks: Sequence[int], mpi_comm: int) -> None:
        """Have MPI's own collectives of a set of these ranks run on a duplicate of a communicator.

        All of the ranks, which are exactly the communicator's, call it before they add the set.
        Waits for them. `mpi_comm` is its handle.
        """
        check(lib.hs_use_communicator(self._pointer, list(ranks), len(ranks), mpi_comm))

    def shutdown(self) -> None:
        """Leave the job: pending operations fail. Does not wait for other ranks."""
        check(lib.hs_shutdown(self._pointer))
        self._in_flight.reap()

    def shutdown_failed(self, reason: str) -> None:
        """Leave the job because this rank failed: the peers' errors will give the reason."""
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
        """Enqueue an operation and return at once; see hs_request in the C header.

        `keep_alive` is held until the operation is done: the owners of the tensors' memory.
        `device` is where that memory is, if it isn't the host's.
        `set_flags` are SetFlags. `will_wait` promises that this thread calls Handle.wait() next.
        What is `sealed` can't be changed between hosts without making the operation fail. Raises
        ValueError, DuplicateNameError, RankFailedError, or HorovodInternalError after shutdown.
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
        """Enqueue an operation that was described before and whose memory has been placed.

        Without `wake` it stays where it is until notify(), the next one with it, or somebody waits.
        """
        request.pointer.will_wait = not wake
        return self._in_flight.enqueue(request.address, keep_alive)

    def prepare(self, key: Hashable, signature: Signature, rows: int = 0) -> Template:
        """Return a template of an operation, which `templates` then know by a key.

        `rows` is for how many rows there is room, where that isn't clear from the input.
        """
        return self.templates.keep(key, prepare(self._in_flight, signature, rows))

    def start_message(
        self, message: MessageArg, is_send: bool, will_wait: bool, keep_alive: object
    ) -> Handle:
        """Start a send or a receive and return at once; see hs_message in the C header.

        `keep_alive` is held until it is done: the owner of the memory. `will_wait` promises that
        this thread calls Handle.wait() next. Raises as enqueue() does.
        """
        room = self._message
        room.describe(message, will_wait)
        start = self._in_flight.send if is_send else self._in_flight.receive
        return start(room.address, keep_alive)

    def prepare_message(self, key: Hashable, message: MessageArg, is_send: bool) -> PreparedMessage:
        """Return what starts such messages of the host's memory; `messages` know it by a key."""
        flight = self._in_flight
        start, run = (
            (flight.send, flight.run_send) if is_send else (flight.receive, flight.run_receive)
        )
        return self.messages.keep(key, PreparedMessage(message, start, run))

    def start_receive(self, message: MessageArg, keep_alive: object, handles: list[Handle]) -> None:
        """Start a receive, whose handle is appended to `handles`.

        That is one step of Python: a Ctrl-C comes before both or after both.
        """
        room = self._message
        room.describe(message, True)
        handles.extend(map(self._in_flight.receive, (room.address,), (keep_alive,)))

    def run_message(self, message: MessageArg, is_send: bool, keep_alive: object) -> int:
        """Do a send or a receive and wait for it; return its result: the rank that has sent.

        On a device its stream waits for the rest: see Handle.wait_on_stream().
        """
        handle = self.start_message(message, is_send, True, keep_alive)
        if message.device is None:
            handle.wait()
        else:
            handle.wait_on_stream(message.device.stream)
        return handle.result()

    def receive_view(self, message: MessageArg, nbytes: int) -> MessageView:
        """Wait for a message and return it where its sender has it, if that can be reached."""
        room = self._message
        room.describe(message, True, is_view=True)
        handle = None
        try:
            handle = self._in_flight.receive_view(room.address, None)
            handle.wait()
        except BaseException:  # Ctrl-C: what comes is given back unseen
            if handle is not None:
                lib.hs_release(self._pointer, handle.pointer)
            raise
        return MessageView(self._pointer, handle, nbytes)

    def notify(self) -> None:
        """Have operations that were enqueued without waking the engine begin."""
        check(lib.hs_notify(self._pointer))

    def process_sets(self) -> dict[int, list[int]]:
        """Return the registered process sets: id and global ranks, in the set's order."""
        found = {}
        for set_id in _int_list(lambda *room: lib.hs_process_sets(self._pointer, *room)):
            with contextlib.suppress(ValueError):  # it has been removed meanwhile
                found[set_id] = _int_list(
                    lambda *room, i=set_id: lib.hs_process_set_ranks(self._pointer, i, *room)
                )
        return found

    def shared_alloc(self, nbytes: int) -> OwnedBuffer:
        """Allocate memory that the other ranks of the host can reach: zeroed, 64-byte aligned."""
        if nbytes < 0:
            raise ValueError(f"can't allocate {nbytes} bytes: an extent is negative")
        out = ffi.new("void **")
        check(lib.hs_shared_alloc(self._pointer, nbytes, out))
        return OwnedBuffer.of_shared(self._pointer, out[0], nbytes)

    def shared_offset(self, memory: OwnedBuffer) -> int:
        """Return where the other ranks of the host find such memory; -1 if none can."""
        out = ffi.new("int64_t *")
        address = ffi.cast("void *", memory.pointer)
        check(lib.hs_shared_offset(self._pointer, address, memory.nbytes, out))
        return int(out[0])

    def shared_join(
        self, ranks: Sequence[int], offsets: Sequence[int], nbytes: int
    ) -> JoinedBuffer:
        """Return `nbytes` of each of these ranks, at its offset, as one piece of memory.

        Raises ValueError if a rank's memory can't be reached, or does not consist of whole
        pages; HorovodInternalError if the system refuses.
        """
        out = ffi.new("void **")
        check(lib.hs_shared_join(self._pointer, ranks, offsets, len(ranks), nbytes, out))
        return JoinedBuffer(out[0], len(ranks) * nbytes)

    def timeline_start(self, path: str, mark_cycles: bool = False) -> None:
        """Write this rank's operations to `path` as Chrome trace JSON from now on."""
        check(lib.hs_timeline_start(self._pointer, c_string(path, "path"), mark_cycles))

    def timeline_stop(self) -> None:
        """Finish the file of timeline_start()."""
        check(lib.hs_timeline_stop(self._pointer))

    def metrics(self) -> dict[str, Any]:
        """Return the counters and timings of this rank."""
        out = ffi.new("char **")
        check(lib.hs_metrics(self._pointer, out))
        metrics: dict[str, Any] = json.loads(text(ffi.gc(out[0], lib.hs_free)))
        return metrics

    def save_residuals(self, process_set: int) -> bytes:
        """Return what lossy encodings have lost of a set's tensors here and not sent yet."""
        data, size = ffi.new("void **"), ffi.new("size_t *")
        check(lib.hs_residuals_save(self._pointer, process_set, data, size))
        return bytes(ffi.buffer(ffi.gc(data[0], lib.hs_free), size[0]))

    def load_residuals(self, process_set: int, saved: bytes) -> bool:
        """Take back what save_residuals() returned; False: it is another rank's or set's.

        Raises ValueError if it is nothing of the kind.
        """
        code = lib.hs_residuals_load(self._pointer, process_set, saved, len(saved))
        if code == lib.HS_MISMATCH:
            return False
        check(code)
        return True

    def scale_residuals(self, process_set: int, factor: float) -> None:
        """Multiply what has been lost, as where gradients are scaled anew; by 0: forget it."""
        check(lib.hs_residuals_scale(self._pointer, process_set, factor))

    def waiting_seconds(self) -> float:
        """Return for how long threads of this rank have waited for operations until now."""
        out = ffi.new("double *")
        check(lib.hs_waiting_seconds(self._pointer, out))
        return float(out[0])

    def _disown(self) -> None:
        # Freeing would join a thread that a forked child does not have.
        self._pointer = ffi.gc(self._pointer, None)


class _InitThread(threading.Thread):
    """Calls hs_init(), which may wait for other ranks for long: Ctrl-C must not wait for it.

    If nobody waits for the thread any longer, the runtime that it gets is freed with it.
    """

    def __init__(self, options: object, keep_alive: object) -> None:
        super().__init__(name="horoscale-init", daemon=True)
        self._options = options
        self._keep_alive = keep_alive  # what the options point to
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
    """Call a function that fills (values, capacity, count) until the capacity is enough."""
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
    """Return what this build and this machine offer, or why they don't."""
    info: dict[str, Any] = json.loads(text(lib.hs_build_info()))
    return info


def config_variables() -> list[dict[str, Any]]:
    """Return the table of configuration variables: name, type, default, doc."""
    variables: list[dict[str, Any]] = json.loads(text(lib.hs_config_variables()))
    return variables


def check_reduction(dtype: DataType, op: ReduceOp) -> None:
    """Raise ValueError if the reduction is not defined for the type (Average of bool)."""
    check(lib.hs_check_reduction(dtype, op))
