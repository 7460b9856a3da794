"""DistributedTrainer: a Gluon Trainer that reduces gradients over the ranks."""

from __future__ import annotations

import warnings
from typing import Any

import mxnet as mx

from horoscale._core import ReduceOp
from horoscale.common.arguments import members_of, set_id
from horoscale.common.process_sets import ProcessSet, global_process_set
from horoscale.mxnet.arrays import check_arrays
from horoscale.mxnet.compression import AnyCompressor, Compression, divide
from horoscale.mxnet.optimizer import DistributedOptimizer, split_evenly
from horoscale.mxnet.reductions import reduce_into


class DistributedTrainer(mx.gluon.Trainer):  # type: ignore[misc]
    """Reduces gradients over the ranks before it updates the parameters.

    As in Horovod, gradients are summed, and the update divides by the number of ranks. After
    allreduce_grads() they are sums, divided by gradient_predivide_factor.
    """

    def __init__(
        self,
        params: Any,
        optimizer: Any,
        optimizer_params: dict[str, Any] | None = None,
        compression: AnyCompressor = Compression.none,
        gradient_predivide_factor: float = 1.0,
        prefix: str | None = None,
        num_groups: int = 0,
        process_set: ProcessSet = global_process_set,
    ) -> None:
        """Create a trainer.

        Args:
            params: the parameters, as for mx.gluon.Trainer, in the same order on all ranks.
            optimizer: an mx.optimizer.Optimizer or its name.
            optimizer_params: the optimizer's arguments if its name is given.
            compression: how gradients between hosts are encoded.
            gradient_predivide_factor: gradients are divided by this factor before the sum over the
                ranks, and by (number of ranks) / factor after it.
            prefix: a prefix for the names of the reductions, to distinguish trainers that step
                concurrently.
            num_groups: the number of groups of gradients that are reduced together. 0: one by one.
            process_set: the ranks that take part.

        Raises:
            ValueError: before hvd.init(), or an argument is invalid.
        """
        set_id(process_set)
        if num_groups < 0:
            raise ValueError(f"num_groups={num_groups} is negative")
        if isinstance(optimizer, DistributedOptimizer):
            warnings.warn(
                "DistributedTrainer averages gradients itself: it takes the optimizer out of the "
                "DistributedOptimizer",
                UserWarning,
                stacklevel=2,
            )
            optimizer = optimizer._optimizer
        super().__init__(params, optimizer, optimizer_params=optimizer_params, kvstore=None)
        self._process_set = process_set
        self._predivide = float(gradient_predivide_factor)
        self._encoding, self._compressor = divide(compression)
        self._prefix = prefix or ""
        self._num_groups = num_groups
        self._scale *= self._predivide / len(members_of(process_set))

    def _allreduce_grads(self) -> None:
        """Push the sums of all gradients. The first ones are the most urgent."""
        if len(members_of(self._process_set)) == 1:
            return
        indices = [i for i, one in enumerate(self._params) if one.grad_req != "null"]
        gradients = {i: self._params[i].list_grad()[0] for i in indices}
        for group in split_evenly(indices, self._num_groups or max(len(indices), 1)):
            given = check_arrays([gradients[i] for i in group])
            compressed = [self._compressor.compress(array) for array in given]
            sent = [array for array, _ in compressed]
            name = self._prefix + ":".join(dict.fromkeys((str(group[0]), str(group[-1]))))
            scales = 1 / self._predivide, 1.0
            reduce_into(
                *(sent, sent, ReduceOp.SUM, name, -group[0], scales, self._process_set),
                encoding=self._encoding,
            )
            for array, (result, context) in zip(given, compressed, strict=True):
                if result is not array:
                    array[:] = self._compressor.decompress(result, context)
