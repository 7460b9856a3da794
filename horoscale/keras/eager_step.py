"""EagerStep: reduces gradients that are already computed: PyTorch's, or arrays."""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from horoscale._core import UnsupportedError
from horoscale.common.arguments import members_of, resolve_op, set_id
from horoscale.common.basics import Adasum, Average, Sum
from horoscale.common.compression import Encoded, Selection
from horoscale.common.process_sets import ProcessSet
from horoscale.common.which_keras import keras
from horoscale.keras.adasum import apply_and_combine
from horoscale.keras.compression import Compression
from horoscale.keras.step import Apply


class Group(NamedTuple):
    """Tensors that are reduced all or nothing."""

    tensors: Sequence[Any]
    compression: Any = Compression.none
    name: str | None = None  # of the operation


# Reduces groups of tensors. Takes the other options of grouped_allreduce().
AllreduceGroups = Callable[..., list[list[Any]]]


def one_by_one(grouped_allreduce: Callable[..., Sequence[Any]]) -> AllreduceGroups:
    """Return a function that reduces one group after the other with a binding's function."""

    def reduce(groups: Sequence[Group], **options: Any) -> list[list[Any]]:
        return [
            list(
                grouped_allreduce(
                    group.tensors, name=group.name, compression=group.compression, **options
                )
            )
            for group in groups
        ]

    return reduce


class EagerStep:
    """Sums gradients over the passes of a step on this rank, then reduces them; see Step."""

    _reduces_groups_together = False  # whether all groups are under way at once

    def __init__(
        self,
        allreduce_groups: AllreduceGroups,
        *,
        passes: int,
        average_passes: bool,
        compression: Any,
        op: int,
        gradient_predivide_factor: float,
        num_groups: int,
        groups: Any,
        process_set: ProcessSet,
        scale_local_gradients: bool,
        device_dense: str = "",
        device_sparse: str = "",
        sparse_as_dense: bool = False,
    ) -> None:
        """`allreduce_groups` is the backend's function; for others, see DistributedOptimizer().

        Devices and sparse gradients only matter for TensorFlow.
        """
        resolve_op(op)
        if process_set.included() is not False:
            set_id(process_set)
        if passes < 1:
            raise ValueError(f"backward_passes_per_step={passes} must be at least 1")
        if gradient_predivide_factor != 1.0 and op != Average:
            raise UnsupportedError("gradient_predivide_factor= needs op=Average")
        if not (hasattr(compression, "compress") and hasattr(compression, "decompress")):
            raise ValueError(
                f"compression={compression!r} is not a compressor: see hvd.Compression"
            )
        if isinstance(compression, Encoded) and op not in (Average, Sum):
            raise UnsupportedError(
                f"{compression!r} is not possible with op={resolve_op(op).label}, only with "
                "op=Average or op=Sum"
            )
        self._allreduce_groups = allreduce_groups
        self._passes = passes
        self._average_passes = average_passes
        self._compression = compression
        self._options = {
            "op": op,
            "prescale_factor": 1.0 / gradient_predivide_factor,
            "postscale_factor": gradient_predivide_factor,
            "process_set": process_set,
        }
        self._groups = _check_groups(num_groups, groups)
        self._process_set = process_set
        self._combines_steps = op == Adasum
        self._scale_local = scale_local_gradients and not self._combines_steps
        self._local: set[int] = set()  # ids; the model keeps the variables alive
        self._pass = 0
        self._sums: list[Any] = []

    def register_local(self, variables: Iterable[Any]) -> None:
        """Exclude the gradients of these variables from the reduction."""
        self._local.update(map(id, variables))

    def outside_of_graph(self, build: Callable[[], None]) -> None:
        """Call `build`, because there is no graph."""
        build()

    def __call__(self, gradients: list[Any], variables: Sequence[Any], apply: Apply) -> Any:
        """Reduce the gradients. `apply` them on the last pass of a step."""
        if self._passes > 1:
            self._add(gradients)
            self._pass = (self._pass + 1) % self._passes
            if self._pass:
                return None
            gradients, self._sums = self._sums, []
            if self._average_passes:
                gradients = [None if one is None else one / self._passes for one in gradients]
        if self._combines_steps:
            return apply_and_combine(gradients, variables, apply, _read, self.reduce)
        return apply(self.reduce(gradients, variables))

    def reduce(self, gradients: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        """Return the gradients reduced over the ranks; unchanged on a rank outside the set."""
        results = list(gradients)
        if not self._process_set.included():
            return results
        present = [i for i, gradient in enumerate(results) if gradient is not None]
        local = [i for i in present if id(variables[i]) in self._local]
        if self._scale_local:
            for i in local:
                results[i] = results[i] / len(members_of(self._process_set))
        chosen = self._grouped([i for i in present if i not in local], variables)
        groups = self._by_compression(chosen, variables)
        if not groups:
            return results
        given = [group._replace(tensors=[results[i] for i in group.tensors]) for group in groups]
        reduced = self._allreduce_groups(given, **self._options)
        for group, gradients_of_group in zip(groups, reduced, strict=True):
            for i, gradient in zip(group.tensors, gradients_of_group, strict=True):
                results[i] = gradient
        return results

    def _by_compression(self, groups: list[list[int]], variables: Sequence[Any]) -> list[Group]:
        """Return groups of indices: those with a lossy encoding, and those exempt from it.

        Only the former have names, for residuals, equal in all steps. Models differ by the shapes
        of their variables. Where all groups are under way at once, each of these gradients has its
        own operation, so that adaptive compression chooses for each.
        """
        if not isinstance(self._compression, Encoded):
            return [Group(group, self._compression) for group in groups]
        shapes = repr([tuple(variable.shape) for variable in variables])
        base = f"keras.gradient.{zlib.crc32(shapes.encode()):08x}"
        select = Selection(self._compression.encoding)
        parts = []
        for group in groups:
            lossy = [i for i in group if _is_encoded(select, variables[i])]
            is_divided = self._reduces_groups_together and not self._groups
            for part in [[i] for i in lossy] if is_divided else [lossy]:
                if part:
                    parts.append(Group(part, self._compression, f"{base}.{part[0]}"))
            if exempt := [i for i in group if i not in lossy]:
                parts.append(Group(exempt))
        return parts

    def _add(self, gradients: Sequence[Any]) -> None:
        if not self._sums:
            # Copies, because the backend may reuse the memory of a gradient.
            self._sums = [None if one is None else one + 0 for one in gradients]
            return
        self._sums = [
            total if one is None else one + 0 if total is None else total + one
            for total, one in zip(self._sums, gradients, strict=True)
        ]

    def _grouped(self, indices: list[int], variables: Sequence[Any]) -> list[list[int]]:
        """Return the indices of the gradients in each reduction."""
        if not indices:
            return []
        if isinstance(self._groups, int):
            count = min(self._groups or 1, len(indices))  # each group blocks
            bounds = [len(indices) * i // count for i in range(count + 1)]
            return [indices[a:b] for a, b in pairwise(bounds)]
        place = {id(variables[i]): i for i in indices}
        chosen = [[place.pop(id(v)) for v in group if id(v) in place] for group in self._groups]
        rest = list(place.values())
        return [group for group in [*chosen, rest] if group]


def _is_encoded(select: Selection, variable: Any) -> bool:
    shape = tuple(variable.shape)
    return bool(select.of(variable.name, variable, math.prod(shape), len(shape)))


def _read(variable: Any) -> Any:
    return keras.ops.copy(keras.ops.stop_gradient(variable))


def _check_groups(num_groups: int, groups: Any) -> int | Sequence[Sequence[Any]]:
    if num_groups and groups is not None:
        raise ValueError("give groups= or num_groups=, not both: num_groups= is the older name")
    chosen: int | Sequence[Sequence[Any]] = groups or num_groups
    if isinstance(chosen, int):
        if chosen < 0:
            raise ValueError(f"the number of groups can't be negative: {chosen}")
        return chosen
    members = [id(variable) for group in chosen for variable in group]
    if len(set(members)) != len(members):
        raise ValueError("groups= contains a variable twice")
    return chosen
