"""Selects the implementation that reduces the gradients of a step, by Keras backend.

With TensorFlow, gradients are values of a graph, and horoscale.tensorflow creates the operations.
With PyTorch, they exist when apply() is called. Other frameworks are never imported.
"""

from __future__ import annotations

from typing import Any

from horoscale.common.which_keras import backend
from horoscale.keras.step import Step


def make_step(**options: Any) -> Step:
    """Return the step for the Keras backend. The options are those of DistributedOptimizer().

    Raises ValueError if an option is invalid or the backend is not supported.
    """
    name = backend()
    if name == "tensorflow":
        from horoscale.keras.graph_step import GraphStep

        return GraphStep(**options)
    if name == "torch":
        from horoscale.keras.eager_step import EagerStep, one_by_one
        from horoscale.torch.reductions import grouped_allreduce

        return EagerStep(one_by_one(grouped_allreduce), **options)
    if name == "jax":
        from horoscale.keras.jax_step import JaxStep

        return JaxStep(**options)
    raise ValueError(
        f"hvd.DistributedOptimizer() does not support Keras' {name} backend: set "
        "KERAS_BACKEND to tensorflow, torch or jax"
    )
