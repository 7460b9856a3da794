"""The callbacks of horoscale.keras."""

from horoscale.keras.callbacks import *  # noqa: F403
