"""HoroscaleProcessGroup: a process set as a process group of torch.distributed."""

# ProcessGroup's stubs have an overload for each of its callers; one method serves them here.
# mypy: disable-error-code="override, assignment, no-any-return"

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from datetime import timedelta
from functools import partial
from typing import Any, TypeVar

import torch
from torch.distributed import ReduceOp, Work

from horoscale._core import Handle, PreparedMessage, Template
from horoscale.common import job
from horoscale.common.process_sets import ProcessSet, global_process_set
from horoscale.torch.distributed import collectives, devices, messages, monitored, prepared, sets
from horoscale.torch.distributed.collectives import Place, Started
from horoscale.torch.distributed.errors import GroupClosedError, GroupTimeoutError
from horoscale.torch.distributed.messages import caller_waits
from horoscale.torch.distributed.named_group import NamedGroup
from horoscale.torch.distributed.places import Tensors
from horoscale.torch.distributed.work import Finished, Operation, late

AnyWork = TypeVar("AnyWork", bound=Work)
# How many works PyTorch's C++ may hold without their Python objects: none from 2.6 on.
_LENT = 64 if tuple(map(int, torch.__version__.split(".")[:2])) < (2, 6) else 0


class HoroscaleProcessGroup(NamedGroup):
    """A process set as a process group. Created by init_process_group() and new_group().

    Python's torch.distributed calls these methods. So do DDP, functional collectives and other C++
    code, through the methods of ProcessGroup that subclasses can override. Every method that starts
    an operation returns its Operation. If the caller indicates that it waits next (asyncOp=False),
    the call itself executes the operation.
    """

    def __init__(
        self,
        process_set: ProcessSet,
        timeout: timedelta,
        owns_job: bool = False,
        owns_set: bool = True,
    ) -> None:
        """Wrap a registered set that contains this process.

        `timeout` applies to operations without their own. `owns_job`: the job was joined for this
        group, and is left with it. `owns_set`: the set was created for this group and is removed
        with it, unless it is the global one.
        """
        assert process_set.ranks is not None
        assert process_set.process_set_id is not None
        super().__init__(process_set.ranks, job.current_runtime().topology.rank)
        self.process_set = process_set
        self._set_id = process_set.process_set_id
        self._owns_job = owns_job
        self._owns_set = owns_set
        self._timeout = timeout.total_seconds()
        self._coalesced: list[Operation] | None = None  # started since _start_coalescing()
        self._started = 0
        self._done = Finished([])
        self._lent: deque[Work] = deque(maxlen=_LENT)
        self._barriers = monitored.numbers_of_group(self._set_id)
        self._closed: str | None = None
        self._was_late = False  # an operation timed out; others may never start it
        sets.groups[self._set_id] = self

    # Properties.

    @property
    def _device_types(self) -> list[torch.device]:
        kinds = ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]
        return [torch.device(kind) for kind in kinds]

    def _get_backend(self, device: torch.device) -> HoroscaleProcessGroup:
        devices.check(torch.device(device), self)
        return self

    @property
    def supports_splitting(self) -> bool:
        """Whether split_group() works."""
        return True

    @property
    def timeout(self) -> timedelta:
        """The timeout of operations without their own."""
        return timedelta(seconds=self._timeout)

    def set_timeout(self, timeout: timedelta) -> None:
        """Set the timeout of operations from now on."""
        self._timeout = timeout.total_seconds()

    _set_default_timeout = set_timeout

    def _get_sequence_number_for_group(self) -> int:
        return self._started

    def _set_sequence_number_for_group(self) -> None:
        """Do nothing: the number counts operations from 0 on all ranks."""

    # Operations.

    def _check_open(self) -> None:
        if self._closed is not None:
            raise GroupClosedError(f"the process group was {self._closed}")

    def _place(self, opts: object) -> Place:
        self._check_open()
        self._started += 1
        return Place(
            self._set_id, len(self._members), self._rank, self._waits(opts), self._check_device
        )

    def _check_device(self, device: torch.device) -> None:
        devices.check(device, self)

    def _waits(self, opts: object) -> bool:
        return self._coalesced is None and not getattr(opts, "asyncOp", True)

    def _seconds(self, opts: object) -> float:
        timeout = getattr(opts, "timeout", None)
        if isinstance(opts, timedelta):
            timeout = opts
        # A negative timeout means none.
        return timeout.total_seconds() if timeout and timeout > timedelta(0) else self._timeout

    def _follow(self, what: str, started: Started, opts: object) -> Operation:
        operation = Operation(
            self._described(what),
            (started.handle,),
            started.results,
            self._seconds(opts),
            started.finish,
            queue=self,
            on_late=self._note_late,
            device=started.device,
        )
        return self._started_one(operation, opts)

    def _described(self, what: str) -> tuple[object, ...]:
        return "{} number {} of ranks {}", what, self._started, self._members

    def _run(
        self,
        what: str,
        template: Template,
        source: torch.Tensor,
        target: torch.Tensor,
        opts: object,
    ) -> Work:
        """Start an operation on the fast path. Execute it if the caller waits next."""
        self._started += 1
        memory = source.untyped_storage(), target.untyped_storage()
        addresses = source.data_ptr(), target.data_ptr()
        if not self._waits(opts):
            return self._follow(what, Started(template.start(*addresses, memory), [target]), opts)
        seconds = self._seconds(opts)
        try:
            template.run(*addresses, memory, seconds)
        except TimeoutError:
            self._note_late()
            raise late(self._described(what), seconds) from None
        return self._lend(Finished([target]))

    def _started_one(self, operation: Operation, opts: object) -> Operation:
        if self._coalesced is not None:
            self._coalesced.append(operation)
        elif self._waits(opts):
            operation.wait()
        return self._lend(operation)

    def _lend(self, work: AnyWork) -> AnyWork:
        """Keep a returned work alive for as long as PyTorch's C++ may call its methods.

        Before PyTorch 2.6, C++ only keeps the C++ object, whose own wait() never returns.
        """
        if _LENT:
            self._lent.append(work)
        return work

    def allreduce(self, tensors: Any, opts: Any = None, timeout: Any = None) -> Work:
        """Reduce tensors in place. `opts` are AllreduceOptions, or the operator."""
        tensors = _list_of(tensors)
        op = getattr(opts, "reduceOp", ReduceOp.SUM if opts is None else opts)
        if tensors[0].is_sparse:
            [tensor] = tensors
            started = collectives.sparse_allreduce(self._place(opts), tensor, op)
            return self._follow("all_reduce", started, timeout or opts)
        if len(tensors) == 1 and timeout is None:
            self._check_open()
            if template := prepared.allreduce(self._set_id, tensors[0], op):
                return self._run("all_reduce", template, tensors[0], tensors[0], opts)
        started = collectives.allreduce(self._place(opts), tensors, op)
        return self._follow("all_reduce", started, timeout or opts)

    allreduce_coalesced = allreduce

    def broadcast(self, tensors: Any, opts: Any = None, timeout: Any = None) -> Work:
        """Broadcast the root's tensor. `opts` are BroadcastOptions, or the root."""
        [tensor] = _list_of(tensors)
        root = self._root(opts)
        if timeout is None:
            self._check_open()
            if template := prepared.broadcast(self._set_id, tensor, root):
                return self._run("broadcast", template, tensor, tensor, opts)
        started = collectives.broadcast(self._place(opts), tensor, root)
        return self._follow("broadcast", started, timeout or opts)

    def reduce(self, tensors: Any, opts: Any = None, op: Any = None) -> Operation:
        """Reduce a tensor to the root. `opts` are ReduceOptions, or the root."""
        [tensor] = _list_of(tensors)
        operator = op if op is not None else getattr(opts, "reduceOp", ReduceOp.SUM)
        is_root = getattr(opts, "rootRank", opts or 0) == self._rank
        place = self._place(opts)
        started = collectives.reduce(place, tensor, self._root(opts), is_root, operator)
        return self._follow("reduce", started, opts)

    def allgather(self, outputs: Any, inputs: Any, opts: Any = None) -> Operation:
        """Gather tensors from all ranks into lists of tensors."""
        if isinstance(inputs, torch.Tensor):
            outputs, inputs = [outputs], [inputs]
        started = collectives.allgather(self._place(opts), outputs, inputs)
        return self._follow("all_gather", started, opts)

    def allgather_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Operation:
        """Gather tensors from all ranks, with a list of outputs per rank."""
        started = collectives.allgather(self._place(opts), list(zip(*outputs, strict=True)), inputs)
        return self._follow("all_gather_coalesced", started, opts)

    def all_gather_single(self, output: Any, given: Any, opts: Any = None) -> Work:
        """Gather tensors from all ranks into a single one."""
        self._check_open()
        if template := prepared.allgather(self._set_id, len(self._members), output, given):
            return self._run("all_gather_into_tensor", template, given, output, opts)
        started = collectives.allgather_single(self._place(opts), [output], [given])
        return self._follow("all_gather_into_tensor", started, opts)

    _allgather_base = all_gather_single

    def all_gather_single_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Operation:
        """Run all_gather_single() for several tensors at once."""
        started = collectives.allgather_single(self._place(opts), outputs, inputs)
        return self._follow("all_gather_into_tensor", started, opts)

    allgather_into_tensor_coalesced = all_gather_single_coalesced

    def reduce_scatter(self, outputs: Any, inputs: Any, opts: Any = None) -> Operation:
        """Reduce lists with one tensor per rank, and give every rank its own result."""
        if isinstance(outputs, torch.Tensor):
            outputs, inputs = [outputs], [inputs]
        op = getattr(opts, "reduceOp", ReduceOp.SUM if opts is None else opts)
        started = collectives.reduce_scatter(self._place(opts), outputs, inputs, op)
        return self._follow("reduce_scatter", started, opts)

    def reduce_scatter_single(self, output: Any, given: Any, opts: Any = None) -> Work:
        """Reduce a tensor, and give every rank its part."""
        op = getattr(opts, "reduceOp", ReduceOp.SUM if opts is None else opts)
        self._check_open()
        size = len(self._members)
        if template := prepared.reduce_scatter(self._set_id, size, output, given, op):
            return self._run("reduce_scatter_tensor", template, given, output, opts)
        return self.reduce_scatter_single_coalesced([output], [given], opts)

    _reduce_scatter_base = reduce_scatter_single

    def reduce_scatter_single_coalesced(
        self, outputs: Any, inputs: Any, opts: Any = None
    ) -> Operation:
        """Run reduce_scatter_single() for several tensors at once."""
        op = getattr(opts, "reduceOp", ReduceOp.SUM if opts is None else opts)
        started = collectives.reduce_scatter_single(self._place(opts), outputs, inputs, op)
        return self._follow("reduce_scatter_tensor", started, opts)

    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    def all_to_all_single(
        self,
        output: torch.Tensor,
        given: torch.Tensor,
        output_split_sizes: Sequence[int] = (),
        input_split_sizes: Sequence[int] = (),
        opts: Any = None,
    ) -> Operation:
        """Send rows to each rank."""
        started = collectives.alltoall_single(
            self._place(opts), output, given, output_split_sizes or (), input_split_sizes or ()
        )
        return self._follow("all_to_all_single", started, opts)

    alltoall_base = all_to_all_single

    def alltoall(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> Operation:
        """Send one tensor to each rank."""
        started = collectives.alltoall(self._place(opts), outputs, inputs)
        return self._follow("all_to_all", started, opts)

    def gather(self, outputs: Any, inputs: Any, opts: Any = None, timeout: Any = None) -> Operation:
        """Gather tensors on the root, which has outputs. `opts`: GatherOptions, or the root."""
        if isinstance(inputs, torch.Tensor):
            outputs, inputs = [outputs], [inputs]
        is_root = getattr(opts, "rootRank", opts or 0) == self._rank
        lists = outputs[0] if is_root else None
        started = collectives.gather(self._place(opts), lists, inputs[0], self._root(opts))
        return self._follow("gather", started, timeout or opts)

    def scatter(
        self, outputs: Any, inputs: Any, opts: Any = None, timeout: Any = None
    ) -> Operation:
        """Scatter the root's tensors. `opts`: ScatterOptions, or the root."""
        if isinstance(outputs, torch.Tensor):
            outputs, inputs = [outputs], [inputs]
        is_root = getattr(opts, "rootRank", opts or 0) == self._rank
        lists = inputs[0] if is_root else None
        started = collectives.scatter(self._place(opts), outputs[0], lists, self._root(opts))
        return self._follow("scatter", started, timeout or opts)

    def barrier(self, opts: Any = None) -> Operation:
        """Wait for all ranks."""
        return self._follow("barrier", collectives.barrier(self._place(opts)), opts)

    def _note_late(self) -> None:
        self._was_late = True

    def _root(self, opts: Any) -> int:
        return self._members[getattr(opts, "rootRank", opts or 0)]

    # Messages.

    def send(self, tensors: Tensors, dst: int, tag: int = 0) -> Work:
        """Send a tensor to a rank of the group."""
        return self._message(True, tensors[0], dst, tag, caller_waits())

    def recv(self, tensors: Tensors, src: int, tag: int = 0) -> Work:
        """Receive a tensor from a rank of the group."""
        return self._message(False, tensors[0], src, tag, caller_waits())

    def recv_anysource(self, tensors: Tensors, tag: int = 0) -> Work:
        """Receive a tensor from the first rank that sends one."""
        return self._message(False, tensors[0], None, tag, caller_waits())

    def _message(
        self, is_send: bool, tensor: torch.Tensor, rank: int | None, tag: int, will_wait: bool
    ) -> Work:
        """Start a message to or from a rank of the group. Execute it if the caller waits."""
        self._check_open()
        self._started += 1
        peer = None if rank is None else self._members[rank]
        if will_wait and self._coalesced is None:
            if message := messages.prepared(is_send, self._set_id, tensor, peer, tag):
                return self._run_message(message, is_send, tensor, rank)
        else:
            will_wait = False
        if not tensor.is_cpu:
            self._check_device(tensor.device)
        handle, finish, device = messages.start(is_send, self._set_id, tensor, peer, tag, will_wait)
        operation = Operation(
            self._described_message(is_send, rank),
            (handle,),
            [tensor],
            self._timeout,
            finish,
            on_late=self._note_late,
            source=None if is_send else partial(self._source, handle),
            device=device,
        )
        if will_wait:
            operation.wait()
        return self._started_one(operation, None)

    def _run_message(
        self, message: PreparedMessage, is_send: bool, tensor: torch.Tensor, rank: int | None
    ) -> Work:
        try:
            source = message.run(tensor.untyped_storage(), tensor.data_ptr(), self._timeout)
        except TimeoutError:
            self._note_late()
            raise late(self._described_message(is_send, rank), self._timeout) from None
        if rank is not None:
            return self._done  # dist.send() and dist.recv() only wait for it
        return Finished([tensor], partial(self._members.index, source))

    def _described_message(self, is_send: bool, rank: int | None) -> tuple[object, ...]:
        whom = "any rank" if rank is None else f"rank {rank}"
        return "{} {} of ranks {}", "send to" if is_send else "recv from", whom, self._members

    def _source(self, receive: Handle) -> int:
        """Return the rank in the group that sent the message of a completed receive."""
        return self._members.index(receive.result())

    # Coalescing.

    def _start_coalescing(self, device: torch.device | None = None) -> None:
        if self._coalesced is not None:
            raise RuntimeError("the process group is coalescing operations already")
        self._coalesced = []

    def _end_coalescing(self, device: torch.device | None = None) -> Operation:
        operations, self._coalesced = self._coalesced or [], None

        def finish() -> None:
            for operation in operations:
                operation.wait()

        results = [one for operation in operations for one in operation._results]
        handles = [one for operation in operations for one in operation._handles]
        what = "{} coalesced operations of ranks {}", len(operations), self._members
        on_device = [one.device for one in operations if one.device is not None]
        return Operation(
            what,
            handles,
            results,
            self._timeout,
            finish,
            on_late=self._note_late,
            device=on_device[0] if on_device else None,
        )

    # Other groups, and shutdown.

    def split_group(
        self,
        new_ranks: Sequence[int],
        timeout: timedelta | None = None,
        opts: object = None,
        group_name: str | None = None,
        group_desc: str | None = None,
        device_types: object = None,
    ) -> HoroscaleProcessGroup | None:
        """Return a group of some ranks of this one, all of which call it; None on other ranks."""
        if self._rank not in new_ranks:
            return None
        members = [self._members[rank] for rank in new_ranks]
        limit = timeout or timedelta(seconds=self._timeout)
        group = HoroscaleProcessGroup(sets.make(members), limit)
        if group_name is not None:
            group._set_group_name(group_name)
        if group_desc is not None:
            group._set_group_desc(group_desc)
        return group

    def monitored_barrier(
        self, timeout: timedelta | float | None = None, wait_all_ranks: bool = False
    ) -> None:
        """Wait for all ranks; see horoscale.torch.distributed.monitored_barrier()."""
        self._place(None)
        given = self.timeout if timeout is None else timeout
        seconds = given.total_seconds() if isinstance(given, timedelta) else given
        number = next(self._barriers)
        try:
            monitored.meet(self._set_id, self._members, self._rank, number, seconds, wait_all_ranks)
        except GroupTimeoutError:
            self._note_late()
            raise

    def shutdown(self) -> None:
        """Leave the group without waiting for other ranks. Called by destroy_process_group()."""
        self._close("destroyed", None)

    def abort(self) -> None:
        """Fail all pending operations of the group, or of the job if joined for the group."""
        self._close("aborted", "its process group was aborted")

    def _close(self, how: str, failure: str | None) -> None:
        if self._closed is not None:
            return
        self._closed = how
        if sets.groups.get(self._set_id) is self:
            del sets.groups[self._set_id]
        if self._owns_job:
            job.stop(failure)
        elif job.is_initialized() and self._owns_set:
            if self.process_set is global_process_set:  # the default group: all end with it
                sets.give_up_all()
            sets.give_up(self.process_set, abandon=self._was_late or failure is not None)


def _list_of(tensors: Any) -> list[torch.Tensor]:
    return [tensors] if isinstance(tensors, torch.Tensor) else tensors
