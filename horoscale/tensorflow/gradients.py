"""GradientReduction: the reduction of a step's gradients for the tape and the optimizers.

In a graph every gradient is reduced by a separate operation, so that the first ones are reduced
while others are still being computed. In eager mode, where each call blocks, one operation reduces
all.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import tensorflow as tf

from horoscale._core import UnsupportedError
from horoscale.common.arguments import members_of, resolve_op, set_id
from horoscale.common.basics import Average
from horoscale.common.compression import Encoded, Selection
from horoscale.common.process_sets import ProcessSet, global_process_set
from horoscale.tensorflow.compression import AnyCompressor, Compression
from horoscale.tensorflow.naming import unique_name
from horoscale.tensorflow.ops import grouped_allreduce
from horoscale.tensorflow.variables import key_of, priority_of


@dataclass
class GradientReduction:
    """Reduces the gradients of a model over the ranks.

    Attributes:
        device_dense, device_sparse, compression, op, process_set: as for hvd.allreduce().
        sparse_as_dense: reduce tf.IndexedSlices as tensors.
        gradient_predivide_factor: with op=Average, divide by this factor before the sum, and by
            (number of ranks) / factor after it.
        groups: the number of groups with about equally many gradients, each reduced all or nothing;
            or a list of lists of variables, one per group. Other variables are reduced separately.
            None or 0: all are reduced separately.
        scale_local_gradients: divide the gradients of local variables, which are not reduced, by
            the number of ranks, so that they have the same scale as averages.
    """

    device_dense: str = ""
    device_sparse: str = ""
    compression: AnyCompressor = Compression.none
    sparse_as_dense: bool = False
    op: int = Average
    gradient_predivide_factor: float = 1.0
    groups: int | Sequence[Sequence[Any]] | None = None
    process_set: ProcessSet = field(default_factory=lambda: global_process_set)
    scale_local_gradients: bool = True
    _local: dict[int, Any] = field(default_factory=dict)  # by key_of()

    def __post_init__(self) -> None:
        """Raise ValueError if an option is invalid."""
        resolve_op(self.op)
        if self.process_set.process_set_id is None or self.process_set.included() is not False:
            set_id(self.process_set)  # raises if it is not usable here
        if not (hasattr(self.compression, "compress") and hasattr(self.compression, "decompress")):
            raise ValueError(
                f"compression={self.compression!r} is not a compressor: see hvd.Compression"
            )
        if self.gradient_predivide_factor != 1.0 and self.op != Average:
            raise UnsupportedError("gradient_predivide_factor= needs op=Average")
        if isinstance(self.groups, int):
            if self.groups < 0:
                raise ValueError(f"the number of groups can't be negative: {self.groups}")
        elif self.groups is not None:
            members = [key_of(variable) for group in self.groups for variable in group]
            if len(set(members)) != len(members):
                raise ValueError("groups= contains a variable twice")

    def register_local(self, variables: Iterable[Any]) -> None:
        """Exclude the gradients of these variables from the reduction."""
        self._local.update((key_of(variable), variable) for variable in variables)

    def __call__(self, gradients: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        """Return the reduced gradients of variables; None stays None.

        On a rank outside the process set, which trains alone, they are unchanged.
        """
        results = list(gradients)
        if not self.process_set.included():
            return results
        reduced: list[int] = []
        for i, (gradient, variable) in enumerate(zip(gradients, variables, strict=True)):
            if gradient is None:
                continue
            if key_of(variable) in self._local:
                results[i] = self._scaled_local(gradient)
            else:
                if self.sparse_as_dense and isinstance(gradient, tf.IndexedSlices):
                    results[i] = tf.convert_to_tensor(gradient)
                reduced.append(i)
        # Not the tensors' names, which depend on models that only this rank may have created.
        base = self._base_name(variables)
        for group, compression in self._by_compression(reduced, variables):
            priority = max(priority_of(variables[i], default=-i) for i in group)
            name = f"{base}.{group[0]}" if base else None
            outcome = self._reduce([results[i] for i in group], priority, name, compression)
            for i, gradient in zip(group, outcome, strict=True):
                results[i] = gradient
        return results

    def _base_name(self, variables: Sequence[Any]) -> str | None:
        """Return the prefix of the gradients' names; None: they have no names.

        In eager mode, gradients need a name only for state that is kept for the next step. The name
        is equal in all steps, even if each has its own tape. Models differ by the shapes of their
        variables.
        """
        if not tf.executing_eagerly():
            return unique_name("gradient")
        if not isinstance(self.compression, Encoded):
            return None
        shapes = repr([tuple(variable.shape) for variable in variables])
        return f"eager.gradient.{zlib.crc32(shapes.encode()):08x}"

    def _by_compression(
        self, indices: list[int], variables: Sequence[Any]
    ) -> list[tuple[list[int], AnyCompressor]]:
        """Split each group into compressed gradients and those exempt from a lossy encoding."""
        groups = self._grouped(indices, variables)
        if not isinstance(self.compression, Encoded):
            return [(group, self.compression) for group in groups]
        select = Selection(self.compression.encoding)
        lossy = {
            i
            for i in indices
            if select.of(
                variables[i].name,
                variables[i],
                variables[i].shape.num_elements() or 0,
                variables[i].shape.rank or 0,
            )
        }
        parts: list[tuple[list[int], AnyCompressor]] = []
        for group in groups:
            parts.append(([i for i in group if i in lossy], self.compression))
            parts.append(([i for i in group if i not in lossy], Compression.none))
        return [(part, compression) for part, compression in parts if part]

    def _reduce(
        self, gradients: list[Any], priority: int, name: str | None, compression: AnyCompressor
    ) -> list[Any]:
        factor = self.gradient_predivide_factor
        return grouped_allreduce(
            gradients,
            device_dense=self.device_dense,
            device_sparse=self.device_sparse,
            compression=compression,
            op=self.op,
            prescale_factor=1.0 / factor,
            postscale_factor=factor,
            name=name,
            process_set=self.process_set,
            priority=priority,
        )

    def _scaled_local(self, gradient: Any) -> Any:
        if not self.scale_local_gradients:
            return gradient
        size = len(members_of(self.process_set))
        if isinstance(gradient, tf.IndexedSlices):
            values = gradient.values / size
            return tf.IndexedSlices(values, gradient.indices, gradient.dense_shape)
        return gradient / size

    def _grouped(self, indices: list[int], variables: Sequence[Any]) -> list[list[int]]:
        """Return the indices of the gradients in each reduction."""
        if not indices:
            return []
        if self.groups and isinstance(self.groups, int):
            count = min(self.groups, len(indices))
            return [
                indices[len(indices) * i // count : len(indices) * (i + 1) // count]
                for i in range(count)
            ]
        if self.groups:
            return self._in_given_groups(indices, variables)
        return [indices] if tf.executing_eagerly() else [[i] for i in indices]

    def _in_given_groups(self, indices: list[int], variables: Sequence[Any]) -> list[list[int]]:
        assert isinstance(self.groups, Sequence)
        place = {key_of(variables[i]): i for i in indices}
        groups = []
        for group in self.groups:
            known = [place.pop(key_of(one)) for one in group if key_of(one) in place]
            if known:
                groups.append(known)
        return groups + [[i] for i in place.values()]


def chosen_groups(num_groups: int, groups: Any) -> Any:
    """Return `groups`, or the older `num_groups`. Raises ValueError if both are given."""
    if num_groups and groups is not None:
        raise ValueError("give groups= or num_groups=, not both: num_groups= is the older name")
    return num_groups or groups
