"""Loading models so that training continues."""

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

    The optimizer keeps its variables and its iterations. All ranks may load one file, or one rank
    loads it and BroadcastGlobalVariablesCallback gives it to the others.

    Args:
        filepath: as for keras.models.load_model().
        custom_optimizers: classes of optimizers that are not Keras' own.
        custom_objects: as for keras.models.load_model().
        compression: how gradients travel,
        **options: and more options of DistributedOptimizer().

    Returns:
        The model. One that was saved without an optimizer has none.

    Raises:
        ValueError: the file can't be loaded, or as for DistributedOptimizer().
    """
    objects = {one.__name__: one for one in custom_optimizers or ()} | (custom_objects or {})
    model = keras.models.load_model(filepath, custom_objects=objects)
    if getattr(model, "optimizer", None) is not None:
        DistributedOptimizer(model.optimizer, compression=compression, **options)
    return model
