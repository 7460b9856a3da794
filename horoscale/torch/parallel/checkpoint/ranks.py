"""The ranks that save or load together: those of a mesh, of the job, or a single process."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import product
from typing import Generic, TypeVar

import cloudpickle

from horoscale._core import Runtime
from horoscale.common import job
from horoscale.common.payloads import allgather_bytes
from horoscale.torch.parallel.checkpoint.errors import CheckpointError
from horoscale.torch.parallel.mesh import Mesh, mesh_or_none

T = TypeVar("T")


@dataclass(frozen=True)
class _Answer(Generic[T]):
    value: T | None
    error: str | None


@dataclass(frozen=True)
class Ranks:
    """The participating ranks. Methods named after what ranks do are collective.

    Attributes:
        rank: the position of this process among them.
        size: their number.
        coordinates: the position on each axis of the mesh; empty without one.
        extents: the extents of these axes.
        runtime: the runtime of their job. A writing thread may outlive it: an elastic job continues
            with another runtime, whose ranks do not take part.
    """

    rank: int = 0
    size: int = 1
    coordinates: Mapping[str, int] = field(default_factory=dict)
    extents: Mapping[str, int] = field(default_factory=dict)
    runtime: Runtime | None = None

    @classmethod
    def of(cls, mesh: Mesh | None) -> Ranks:
        """Return the ranks of a mesh. None: of the current mesh, else of the job, else this one."""
        mesh = mesh_or_none() if mesh is None else mesh
        if not job.is_initialized():
            return cls()
        runtime = job.current_runtime()
        topology = runtime.topology
        if mesh is None:
            return cls(topology.rank, topology.size, runtime=runtime)
        return cls(topology.rank, topology.size, mesh.coordinates, mesh.sizes, runtime)

    @property
    def stage(self) -> int:
        """The position on the axis of the pipeline."""
        return self.coordinates.get("pp", 0)

    @property
    def is_first(self) -> bool:
        """Whether this rank decides, and writes what is written once."""
        return self.rank == 0

    @property
    def place(self) -> dict[str, int]:
        """The position of this rank in the mesh; without a mesh, on an axis of data."""
        return dict(self.coordinates) or {"dp": self.rank}

    def all_places(self) -> list[dict[str, int]]:
        """Return the positions of all ranks. Not collective."""
        extents = self.extents or {"dp": self.size}
        return [
            dict(zip(extents, position, strict=True))
            for position in product(*map(range, extents.values()))
        ]

    def all_do(self, what: str, function: Callable[[], T]) -> list[T]:
        """Call a function on each rank and return the results of all ranks.

        Raises the function's exception on the rank where it occurred, and CheckpointError on the
        others, so that no rank continues. Raises HorovodInternalError if a rank failed.
        """
        failure: Exception | None = None
        answer: _Answer[T]
        try:
            answer = _Answer(function(), None)
        except Exception as error:
            failure = error
            answer = _Answer(None, f"{type(error).__name__}: {error}")
        answers = self._gather(what, answer)
        if failure is not None:
            raise failure
        errors = [f"rank {rank}: {one.error}" for rank, one in enumerate(answers) if one.error]
        if errors:
            raise CheckpointError(f"the checkpoint failed on {'; '.join(errors)}")
        return [one.value for one in answers]  # type: ignore[misc]

    def first_does(self, what: str, function: Callable[[], T]) -> T:
        """Call a function on the first rank and return its result on all. Errors as in all_do()."""
        return self.all_do(what, lambda: function() if self.is_first else None)[0]  # type: ignore[return-value]

    def _gather(self, what: str, value: T) -> list[T]:
        if self.size == 1 or self.runtime is None:
            return [value]
        # Only one save runs at a time, so the name is not in use.
        name = f"horoscale.checkpoint.{what}"
        payloads = allgather_bytes(self.runtime, cloudpickle.dumps(value), self.size, name)
        return [pickle.loads(one) for one in payloads]
