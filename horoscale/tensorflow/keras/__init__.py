"""horoscale for Keras with its TensorFlow backend: the names of horoscale.keras."""

import keras

if keras.backend.backend() != "tensorflow":
    raise ImportError(
        f"horoscale.tensorflow.keras is for Keras with TensorFlow, not {keras.backend.backend()}: "
        "import horoscale.keras"
    )
from horoscale.keras import *  # noqa: F403
from horoscale.keras import __all__ as __all__

del keras
