"""Mesh: the ranks of a job in a grid whose axes are process sets."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from itertools import combinations, product
from math import prod
from typing import Any

from horoscale.common import allgather_object, job
from horoscale.common.basics import init as init_job
from horoscale.common.process_sets import (
    ProcessSet,
    add_process_set,
    are_dynamic,
    global_process_set,
    remove_process_set,
)
from horoscale.torch.user_warning import warn_user

AXES = ("tp", "cp", "dp", "pp")
ORDER = "-".join(AXES)
_EXCHANGE = "horoscale.torch.parallel.mesh"


@dataclass(frozen=True)
class Axis:
    """The ranks that share one kind of parallelism, as seen by one of them.

    A mesh creates them. Every function of this package also accepts an axis created by hand.

    Attributes:
        name: the name in error messages, such as "tp".
        ranks: the global ranks, in the order of the axis.
        rank: the position of this process among them.
        set: their process set. None only if there is one rank, which has no peers.
    """

    name: str
    ranks: tuple[int, ...]
    rank: int
    set: ProcessSet | None = field(default=None, hash=False)

    def __post_init__(self) -> None:
        """Raise ValueError if the parts contradict each other."""
        if not 0 <= self.rank < len(self.ranks):
            raise ValueError(
                f"axis {self.name}: position {self.rank} is out of range for ranks {self.ranks}"
            )
        if self.set is None:
            if len(self.ranks) > 1:
                raise ValueError(f"axis {self.name}: ranks {self.ranks} need a process set")
        elif self.set.ranks is not None and tuple(self.set.ranks) != self.ranks:
            raise ValueError(f"axis {self.name}: ranks {self.ranks} are not those of {self.set}")

    @classmethod
    def of(cls, group: Any, name: str = "group") -> Axis:
        """Return the axis for a process set or a torch.distributed process group.

        Args:
            group: an Axis, which is returned; a registered ProcessSet; a ProcessGroup of the
                backend "horoscale"; or None for this process alone.
            name: the name of the axis in error messages.

        Raises:
            ValueError: the set is not registered, this process does not belong to it, or the group
                has another backend.
            TypeError: the argument is of another type.
        """
        if isinstance(group, Axis):
            return group
        own = job.current_runtime().topology.rank
        if group is None:
            return cls(name, (own,), 0)
        if not isinstance(group, ProcessSet):
            if not hasattr(group, "rank") or not hasattr(group, "size"):
                raise TypeError(f"expected an Axis, ProcessSet or ProcessGroup, not {group!r}")
            group = ProcessSet.from_group(group)
        position = group.rank()
        if position is None:
            raise ValueError(f"{group} is not registered")
        return cls(name, tuple(group.ranks), position, None if len(group.ranks) == 1 else group)

    @property
    def size(self) -> int:
        """The number of ranks."""
        return len(self.ranks)

    @property
    def next(self) -> int:
        """The global rank after this one, cyclically."""
        return self.ranks[(self.rank + 1) % self.size]

    @property
    def prev(self) -> int:
        """The global rank before this one, cyclically."""
        return self.ranks[self.rank - 1]


class Mesh:
    """The ranks of a job in a grid with an axis for each kind of parallelism.

    init() creates it. `mesh.tp`, `mesh.cp`, `mesh.dp` and `mesh.pp` are this process' axes;
    `mesh["dp"]` is the same as `mesh.dp`. `mesh["dp", "cp"]` is the axis of all ranks that differ
    from this one only in dp and cp, in the order of their global ranks.
    """

    def __init__(self, sizes: Mapping[str, int], rank: int, sets: _Sets) -> None:
        """Create a mesh from axes (name to extent, neighboring ranks first) and their sets."""
        self._sizes = dict(sizes)
        self._rank = rank
        self._sets = sets

    def __getitem__(self, names: str | tuple[str, ...]) -> Axis:
        """Return an axis or a product of axes; raise KeyError for an unknown name."""
        chosen = (names,) if isinstance(names, str) else tuple(names)
        for name in chosen:
            if name not in self._sizes:
                raise KeyError(f"this mesh has the axes {', '.join(self._sizes)}, not {name!r}")
        ranks = ranks_along(self._sizes, chosen, self._rank)
        return Axis("-".join(chosen), ranks, ranks.index(self._rank), self._sets.of(ranks))

    @property
    def tp(self) -> Axis:
        """Tensor parallelism: layers are divided among these ranks."""
        return self["tp"]

    @property
    def cp(self) -> Axis:
        """Context parallelism: sequences are divided among these ranks."""
        return self["cp"]

    @property
    def dp(self) -> Axis:
        """Data parallelism: these ranks train the same parameters on different samples."""
        return self["dp"]

    @property
    def pp(self) -> Axis:
        """Pipeline parallelism: each of these ranks has a stage of the model."""
        return self["pp"]

    @property
    def world(self) -> Axis:
        """All ranks."""
        return self[tuple(self._sizes)]

    @property
    def sizes(self) -> dict[str, int]:
        """The extent of each axis. The axis of neighboring ranks comes first."""
        return dict(self._sizes)

    @property
    def coordinates(self) -> dict[str, int]:
        """The position of this process on each axis."""
        return self.coordinates_of(self._rank)

    def coordinates_of(self, rank: int) -> dict[str, int]:
        """Return a global rank's position on each axis; raise ValueError for an unknown rank."""
        if not 0 <= rank < prod(self._sizes.values()):
            raise ValueError(f"{self} has no rank {rank}")
        return _coordinates(self._sizes, rank)

    def rank_at(self, **positions: int) -> int:
        """Return the global rank at these positions and, on other axes, at this rank's position.

        Raises ValueError for an unknown axis or a position out of range.
        """
        coordinates = self.coordinates
        for name, position in positions.items():
            if not 0 <= position < self._sizes.get(name, 0):
                raise ValueError(f"{self} has no position {name}={position}")
            coordinates[name] = position
        return _rank(self._sizes, coordinates)

    def to_device_mesh(self, device_type: str = "cpu") -> Any:
        """Return a torch.distributed.DeviceMesh of the same ranks and axis names. Collective.

        Its last dimension is the axis of neighboring ranks. Axes of one rank are omitted, unless
        there is no other. Its groups are separate process sets, so PyTorch's operations on them do
        not mix with those of this mesh. If torch.distributed has no default group yet, it is
        initialized with the backend "horoscale".
        """
        dist = importlib.import_module("torch.distributed")
        importlib.import_module("horoscale.torch.distributed")
        if not dist.is_initialized():
            dist.init_process_group("horoscale", init_method="horoscale://")
        sizes = {name: size for name, size in self._sizes.items() if size > 1} or {"dp": 1}
        device_mesh = importlib.import_module("torch.distributed.device_mesh")
        return device_mesh.init_device_mesh(
            device_type, tuple(reversed(sizes.values())), mesh_dim_names=tuple(reversed(sizes))
        )

    @classmethod
    def from_device_mesh(cls, device_mesh: Any) -> Mesh:
        """Create a mesh from a torch.distributed.DeviceMesh with named dimensions. Collective.

        It has the DeviceMesh's axes, the last dimension first, and the remaining axes of init()
        with one rank each. It becomes the job's mesh, as if init() had created it.

        Raises ValueError if the DeviceMesh has no names or does not contain all ranks of the job in
        order, or if there already is a mesh.
        """
        names = device_mesh.mesh_dim_names
        grid = device_mesh.mesh
        if not names:
            raise ValueError(f"{device_mesh} needs mesh_dim_names")
        if grid.flatten().tolist() != list(range(job.current_runtime().topology.size)):
            raise ValueError(f"{device_mesh} must contain all ranks of the job in order")
        sizes = dict(zip(reversed(names), reversed(grid.shape), strict=True))
        return _begin(sizes | {name: 1 for name in AXES if name not in sizes})

    def close(self) -> None:
        """Remove the mesh and its process sets, so that another can be created. Collective.

        First delete the modules and optimizers that use it.
        """
        global _current
        self._sets.remove()
        if _current is self:
            _current = None

    def __repr__(self) -> str:
        sizes = ", ".join(f"{name}={size}" for name, size in self._sizes.items())
        return f"Mesh({sizes})"


class _Sets:
    """The process sets of a mesh: ranks that occur twice share a set; a single rank has none."""

    def __init__(self, sizes: Mapping[str, int], own: int) -> None:
        """Register the sets of all axes and of their products. Collective.

        They are registered at once, so that access to an axis is not a collective operation. They
        are separate from the user's sets of the same ranks.
        """
        self._by_ranks: dict[tuple[int, ...], ProcessSet] = {}
        everyone = tuple(range(prod(sizes.values())))
        if len(everyone) > 1:
            self._by_ranks[everyone] = global_process_set
        for ranks in _all_lines(sizes):
            if len(ranks) == 1 or ranks in self._by_ranks:
                continue
            # Sets known to all ranks also support CUDA tensors, but must be enabled.
            if are_dynamic() or own in ranks:
                self._by_ranks[ranks] = add_process_set(
                    ranks, distinct=True, members_only=not are_dynamic()
                )

    def of(self, ranks: tuple[int, ...]) -> ProcessSet | None:
        if len(ranks) == 1:
            return None
        if ranks not in self._by_ranks:
            raise ValueError(
                f"the mesh of the ranks {list(ranks)} was closed, or its job has ended"
            )
        return self._by_ranks[ranks]

    def remove(self) -> None:
        for process_set in self._by_ranks.values():
            if process_set is not global_process_set and process_set.process_set_id is not None:
                remove_process_set(process_set)
        self._by_ranks.clear()


_current: Mesh | None = None


def init(tp: int = 1, cp: int = 1, pp: int = 1, dp: int | None = None, order: str = ORDER) -> Mesh:
    """Arrange the ranks of the job in a mesh. Every rank must call it with the same arguments.

    Calls hvd.init() if necessary. Each axis is a process set, and so is each product of axes. Equal
    ones are the same set, all ranks are hvd.global_process_set, and an axis of one rank has no set.

    Args:
        tp: the number of ranks for tensor parallelism.
        cp: the number of ranks for context parallelism.
        pp: the number of ranks for pipeline parallelism.
        dp: the number of ranks for data parallelism. None: derived from the number of ranks.
        order: the axes, that of neighboring ranks first. Put the axis that communicates most there:
            launchers number the ranks host by host. Axes of one rank may be omitted.

    Returns:
        The mesh.

    Raises:
        ValueError: the product of the extents is not the number of ranks, `order` has an unknown
            axis or lacks one, the ranks pass different arguments, or there already is a mesh.

    Warns if tensor parallelism spans hosts, because it waits for messages in every layer.
    """
    sizes = _arrange({"tp": tp, "cp": cp, "dp": dp, "pp": pp}, order)
    if not job.is_initialized():
        init_job(process_sets="dynamic")
    return _begin(_fill(sizes, job.current_runtime().topology.size))


def current_mesh() -> Mesh:
    """Return the mesh that init() has created; raise ValueError if there is none."""
    if _current is None:
        raise ValueError("there is no mesh: call horoscale.torch.parallel.init() first")
    return _current


def mesh_or_none() -> Mesh | None:
    """Return the mesh that init() has created, or None."""
    return _current


def _begin(sizes: Mapping[str, int]) -> Mesh:
    global _current
    if _current is not None:
        raise ValueError(f"there already is a mesh, {_current}: close() it before creating another")
    topology = job.current_runtime().topology
    here = Place(topology.local_rank, topology.local_size, topology.cross_rank)
    said = allgather_object((list(sizes.items()), here), name=_EXCHANGE)
    _check_agreement([tuple(one) for one, _ in said])
    if topology.rank == 0:
        _warn_of_hosts(sizes, hosts_of([place for _, place in said]))
    _current = Mesh(sizes, topology.rank, _Sets(sizes, topology.rank))
    return _current


def _forget() -> None:
    global _current
    _current = None


job.at_end(_forget)


def _arrange(extents: Mapping[str, int | None], order: str) -> dict[str, int | None]:
    """Return the extents in order; raise ValueError if extents or order are invalid."""
    names = order.split("-")
    for name in names:
        if name not in extents:
            raise ValueError(f"order={order!r} has an unknown axis {name!r}: the axes are {ORDER}")
    if len(set(names)) != len(names):
        raise ValueError(f"order={order!r} names an axis twice")
    for name, extent in extents.items():
        if extent is not None and (isinstance(extent, bool) or extent < 1):
            raise ValueError(f"{name}={extent}: an axis must have at least one rank")
        if extent != 1 and name not in names:
            raise ValueError(f"order={order!r} lacks the axis {name!r}, which has {name}={extent}")
    missing = [name for name in extents if name not in names]
    return {name: extents[name] for name in (*names, *missing)}


def _fill(sizes: Mapping[str, int | None], ranks: int) -> dict[str, int]:
    """Return the sizes including dp; raise ValueError if they do not match the number of ranks."""
    given = {name: size for name, size in sizes.items() if size is not None}
    rest, remainder = divmod(ranks, prod(given.values()))
    text = " * ".join(f"{name}={size}" for name, size in given.items())
    if remainder or rest == 0:
        raise ValueError(f"{text} = {prod(given.values())} does not divide the {ranks} ranks")
    if len(given) == len(sizes) and rest != 1:
        raise ValueError(f"{text} = {prod(given.values())}, but there are {ranks} ranks")
    return {name: rest if size is None else size for name, size in sizes.items()}


def _check_agreement(said: Sequence[tuple[tuple[str, int], ...]]) -> None:
    if len(set(said)) > 1:
        by_mesh: dict[tuple[tuple[str, int], ...], list[int]] = {}
        for rank, one in enumerate(said):
            by_mesh.setdefault(one, []).append(rank)
        each = (
            f"ranks {ranks}: {', '.join(f'{name}={size}' for name, size in one)}"
            for one, ranks in by_mesh.items()
        )
        raise ValueError(f"the ranks request different meshes: {'; '.join(each)}")


# ---------------------------------------------------------------- where ranks are, in a mesh


def _coordinates(sizes: Mapping[str, int], rank: int) -> dict[str, int]:
    found = {}
    for name, size in sizes.items():
        rank, found[name] = divmod(rank, size)
    return found


def _rank(sizes: Mapping[str, int], coordinates: Mapping[str, int]) -> int:
    return reduce(
        lambda rank, name: rank * sizes[name] + coordinates[name], reversed(list(sizes)), 0
    )


def ranks_along(sizes: Mapping[str, int], names: Sequence[str], rank: int) -> tuple[int, ...]:
    """Return the sorted ranks that differ from this one only on the named axes."""
    own = _coordinates(sizes, rank)
    extents = [range(sizes[name]) if name in names else [own[name]] for name in sizes]
    return tuple(
        sorted(
            _rank(sizes, dict(zip(sizes, position, strict=True))) for position in product(*extents)
        )
    )


def _all_lines(sizes: Mapping[str, int]) -> Iterator[tuple[int, ...]]:
    """Yield the ranks of all axes and products; for each of them, ordered by first rank."""
    wide = [name for name, size in sizes.items() if size > 1]
    for number in range(1, len(wide)):
        for names in combinations(wide, number):
            for rank in range(prod(sizes.values())):
                ranks = ranks_along(sizes, names, rank)
                if rank == ranks[0]:
                    yield ranks


# ---------------------------------------------------------------- where ranks are, on hosts


@dataclass(frozen=True)
class Place:
    """A rank's location: hvd.local_rank(), local_size() and cross_rank()."""

    local_rank: int
    local_size: int
    cross_rank: int


def hosts_of(places: Sequence[Place]) -> list[int]:
    """Return the index of each rank's host. Hosts may have different numbers of ranks."""
    sizes = {one.cross_rank: one.local_size for one in places if one.local_rank == 0}
    having = {
        local: [host for host in sorted(sizes) if sizes[host] > local]
        for local in range(max(sizes.values()))
    }
    return [having[one.local_rank][one.cross_rank] for one in places]


def _warn_of_hosts(sizes: Mapping[str, int], hosts: Sequence[int]) -> None:
    for rank in range(len(hosts)):
        ranks = ranks_along(sizes, ["tp"], rank)
        across = sorted({hosts[one] for one in ranks})
        if len(across) > 1:
            warn_user(
                f"tensor parallelism spans hosts: tp={sizes['tp']} consists of ranks "
                f"{list(ranks)} on {len(across)} hosts, so each layer waits for the network. "
                "Choose a tp that divides the number of ranks per host, and put it first in order="
            )
            return
