"""horoscale for Keras with its TensorFlow backend: exports the names of horoscale.keras.

With TF_USE_LEGACY_KERAS=1, tf.keras is tf_keras (Keras 2), which is then used.
"""

from horoscale.common.which_keras import backend

if backend() != "tensorflow":
    raise ImportError(
        f"horoscale.tensorflow.keras is for Keras with TensorFlow, not {backend()}: "
        "import horoscale.keras"
    )
# Some type checkers do not evaluate the combined list in horoscale.keras.
from horoscale.common.exports import *  # noqa: F403
from horoscale.keras import *  # noqa: F403
from horoscale.keras import __all__ as __all__

del backend
