"""Loading of models, to continue training."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from horoscale.common.which_keras import keras
from horoscale.keras.compression import Compression
from horoscale.keras.optimizer import DistributedOptimizer


def load_model(
    filepath: Any,
    custom_optimizers: Iterable[type] | None = None,
    custom_objects: dict[str, Any] | None = None,
    compression: Any = Compression.none,
    **options: Any,
) -> Any:
    """Load a model that was saved with its optimizer, which becomes a DistributedOptimizer.

    The optimizer keeps its variables and its iterations. Either all ranks load the file, or one
    rank loads it and BroadcastGlobalVariablesCallback sends it to the others.

    Args:
        filepath: as for keras.models.load_model().
        custom_optimizers: optimizer classes that are not part of Keras.
        custom_objects: as for keras.models.load_model().
        compression: the compression of gradients.
        **options: further options of DistributedOptimizer().

    Returns:
        The model. It has no optimizer if it was saved without one.

    Raises:
        ValueError: the file cannot be loaded, or as for DistributedOptimizer().
    """
    objects = {one.__name__: one for one in custom_optimizers or ()} | (custom_objects or {})
    model = keras.models.load_model(filepath, custom_objects=objects)
    if getattr(model, "optimizer", None) is not None:
        DistributedOptimizer(model.optimizer, compression=compression, **options)
    return model
