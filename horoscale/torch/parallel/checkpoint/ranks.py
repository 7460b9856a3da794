"""The ranks that save or load together: those of a mesh, of a job without one, or one process."""

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
    """Who takes part. Methods that are named after what ranks do are collective.

    Attributes:
        rank: this process's number among them.
        size: how many there are.
        coordinates: where it is on the axes of the mesh; empty where there is none.
        extents: of these axes.
        runtime: the job that they are of. What a thread writes may outlast it, and an elastic job
            then continues with another one, whose ranks expect nothing of this.
    """

    rank: int = 0
    size: int = 1
    coordinates: Mapping[str, int] = field(default_factory=dict)
    extents: Mapping[str, int] = field(default_factory=dict)
    runtime: Runtime | None = None

    @classmethod
    def of(cls, mesh: Mesh | None) -> Ranks:
        """Return the ranks of a mesh. None: of the present one, else of the job, else one."""
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
        """The position on the axis of pipelines."""
        return self.coordinates.get("pp", 0)

    @property
    def is_first(self) -> bool:
        """Whether this is the rank that decides and writes what there is once."""
        return self.rank == 0

    @property
    def place(self) -> dict[str, int]:
        """Where this rank is among those that differ in their data, or have other stages."""
        return dict(self.coordinates) or {"dp": self.rank}

    def all_places(self) -> list[dict[str, int]]:
        """Return the places of all ranks. Not collective."""
        extents = self.extents or {"dp": self.size}
        return [
            dict(zip(extents, position, strict=True))
            for position in product(*map(range, extents.values()))
        ]

    def all_do(self, what: str, function: Callable[[], T]) -> list[T]:
        """Call a function on each rank and return what all of them return.

        Raises what the function raised here, and CheckpointError if it raised elsewhere: no rank
        continues. HorovodInternalError if a rank failed.
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
        """Call a function on the first rank and return its value on all; errors as all_do()."""
        return self.all_do(what, lambda: function() if self.is_first else None)[0]  # type: ignore[return-value]

    def _gather(self, what: str, value: T) -> list[T]:
        if self.size == 1 or self.runtime is None:
            return [value]
        # Saves are made one at a time, so that these names are free.
        name = f"horoscale.checkpoint.{what}"
        payloads = allgather_bytes(self.runtime, cloudpickle.dumps(value), self.size, name)
        return [pickle.loads(one) for one in payloads]
