"""watch_memory(): the memory that a step uses on each rank, to compare it with par.memory()."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from horoscale._tables import table
from horoscale.common import allgather_object, job
from horoscale.torch.parallel.mesh import mesh_or_none
from horoscale.torch.parallel.planning.dry_run import Live, Names
from horoscale.torch.parallel.planning.memory import Memory, RankMemory
from horoscale.torch.parallel.planning.numbers import readable_bytes
from horoscale.torch.parallel.planning.stand_ins import nbytes_of

_SMAPS = Path("/proc/self/smaps")
_NAME = "horoscale.memory_report"


class _Mapping(NamedTuple):
    """A memory mapping of this process that may be shared with others, in bytes."""

    begin: int
    end: int
    resident: int
    share: int  # resident bytes, divided by the number of processes that share them


@dataclass
class MemoryWatch:
    """The result of watch_memory().

    Attributes:
        peak: the bytes of this rank at its peak. `working` are tensors that belong to no other
            kind. `buckets` is memory shared with other ranks that is not the model's: gradients in
            transit, messages, arenas. Of shared memory, this rank's part counts.
    """

    peak: RankMemory | None = None

    def report(self, predicted: Memory | None = None) -> str:
        """Return a table of all ranks. Collective, in a job.

        Args:
            predicted: the result of par.memory(). Its prediction for a rank's stage is added as a
                second line.

        Raises:
            RuntimeError: nothing was watched.
        """
        if self.peak is None:
            raise RuntimeError("watch_memory() has to end before it reports")
        mesh = mesh_or_none()
        stage = 0 if mesh is None else mesh.pp.rank
        rank = job.current_runtime().topology.rank if job.is_initialized() else 0
        own = (rank, stage, self.peak)
        said = allgather_object(own, name=_NAME) if job.is_initialized() else [own]
        names = [one.name for one in fields(RankMemory)]
        rows = []
        for number, at, peak in said:
            rows.append([f"rank {number}", *map(readable_bytes, astuple(peak))])
            if predicted is not None:
                of_stage = astuple(predicted.ranks[at])
                rows.append(["  predicted", *map(readable_bytes, of_stage)])
        return table(["", *names], rows)


@contextmanager
def watch_memory(
    model: nn.Module, optimizer: torch.optim.Optimizer | None = None
) -> Iterator[MemoryWatch]:
    """Record the memory that a step uses, and for what.

        with par.watch_memory(pipe.module, optimizer) as watch:
            optimizer.zero_grad()
            pipe.step(x, target)
            optimizer.step()
        print(watch.report(par.memory(model, batch, mesh, loss=loss)))

    It counts all storages that operations of this thread allocate inside the block, as long as they
    are referenced, and the existing memory of the model and the optimizer. Operations are slower in
    the block. Watch the second step or a later one, because the first one creates the optimizer's
    state.

    Args:
        model: the model, or this rank's stage of it.
        optimizer: its optimizer, whose state is counted.
    """
    watch = MemoryWatch()
    names = Names()
    parameters = [*model.parameters(), *model.buffers()]
    own = {names.of(one) for one in parameters}
    before = {names.of(one) for one in _gradients_of(model)}
    saved = _Saved(names, own)
    live = Live(names)
    gradients = _Gradients(model)
    with ExitStack() as stack:
        stack.callback(gradients.end)
        stack.enter_context(saved.count())
        stack.enter_context(live)
        yield watch
    share = _shares()
    state = [] if optimizer is None else tree_leaves(list(optimizer.state.values()))
    of_parameters = _nbytes(parameters, share)
    of_optimizer = _nbytes([one for one in state if isinstance(one, torch.Tensor)], share)
    last = _gradients_of(model)
    of_gradients = max(gradients.most, _nbytes(last, share))
    # Gradients that were zeroed in place are always there, and were not created by the operations.
    kept = [one for one in last if names.of(one) in before and share(one.data_ptr()) is None]
    peak = live.most + _nbytes(kept, share)
    working = max(0, peak - of_gradients - saved.most)
    of_shared = [one for one in (*parameters, *state) if isinstance(one, torch.Tensor)]
    shared = sum(one.share for one in _mappings()) - _nbytes(of_shared, share, shared_alone=True)
    shared = max(0, shared)
    watch.peak = RankMemory(
        of_parameters,
        of_gradients,
        of_optimizer,
        saved.most,
        working,
        shared,
        of_parameters + of_optimizer + peak + shared,
    )


def _gradients_of(model: nn.Module) -> list[torch.Tensor]:
    return [one.grad for one in model.parameters() if one.grad is not None]


class _Gradients:
    """The maximum size of a model's gradients, as backward passes compute them."""

    def __init__(self, model: nn.Module) -> None:
        self.most = 0
        self._parameters = [one for one in model.parameters() if one.requires_grad]
        self._handles = [
            one.register_post_accumulate_grad_hook(self._note)  # type: ignore[no-untyped-call]
            for one in self._parameters
        ]

    def _note(self, _: torch.Tensor) -> None:
        now = sum(nbytes_of(one.grad) for one in self._parameters if one.grad is not None)
        self.most = max(self.most, now)

    def end(self) -> None:
        for one in self._handles:
            one.remove()


class _Saved:
    """The maximum that autograd keeps, each storage once, without parameters and buffers."""

    def __init__(self, names: Names, never: set[int]) -> None:
        self.most = 0
        self._names, self._never = names, never
        self._times: dict[int, int] = {}
        self._bytes = 0

    def count(self) -> torch.autograd.graph.saved_tensors_hooks:
        """Return a context in which saved tensors are counted."""
        return torch.autograd.graph.saved_tensors_hooks(
            lambda tensor: _Kept(self, tensor), lambda kept: kept.tensor
        )

    def add(self, tensor: torch.Tensor, times: int) -> None:
        key = self._names.of(tensor)
        if key in self._never:
            return
        before = self._times.get(key, 0)
        self._times[key] = before + times
        if not before or not self._times[key]:
            self._bytes += times * tensor.untyped_storage().nbytes()
            self.most = max(self.most, self._bytes)


class _Kept:
    def __init__(self, saved: _Saved, tensor: torch.Tensor) -> None:
        self.tensor = tensor.detach()
        self._saved = saved
        saved.add(self.tensor, 1)

    def __del__(self) -> None:
        self._saved.add(self.tensor, -1)


def _nbytes(
    tensors: Iterable[torch.Tensor],
    share: Callable[[int], float | None],
    shared_alone: bool = False,
) -> int:
    """Return the bytes of tensors' storages, each once. Of shared memory, this process's part."""
    storages = {one.untyped_storage().data_ptr(): one.untyped_storage() for one in tensors}
    found = 0.0
    for address, storage in storages.items():
        part = share(address)
        if part is None and shared_alone:
            continue
        found += storage.nbytes() * (1.0 if part is None else part)
    return round(found)


def _shares() -> Callable[[int], float | None]:
    """Return a function from an address to its fraction of shared memory; None: it is private."""
    mappings = _mappings()
    begins = [one.begin for one in mappings]

    def share(address: int) -> float | None:
        at = bisect_right(begins, address) - 1
        if at < 0 or address >= mappings[at].end:
            return None
        one = mappings[at]
        return one.share / one.resident if one.resident else 0.0

    return share


def _mappings() -> Sequence[_Mapping]:
    """Return this process's shared memory mappings by address; none if they are unavailable."""
    try:
        text = _SMAPS.read_text()
    except OSError:
        return []
    found = []
    # A mapping begins with a line "begin-end rights offset device inode path"; figures follow.
    for part in re.split(r"\n(?=[0-9a-f]+-[0-9a-f]+ )", text):
        head, _, figures = part.partition("\n")
        if not re.search(r" (/dev/shm/|/memfd:|/SYSV|/dev/zero)", head):
            continue
        begin, end = (int(one, 16) for one in head.split()[0].split("-"))
        sizes: dict[str, Any] = dict(re.findall(r"^(Rss|Pss): +(\d+) kB", figures, re.MULTILINE))
        resident, share = (int(sizes.get(kind, 0)) * 1024 for kind in ("Rss", "Pss"))
        found.append(_Mapping(begin, end, resident, share))
    return found
