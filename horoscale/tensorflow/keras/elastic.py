"""hvd.elastic of horoscale.keras."""

from horoscale.keras.elastic import *  # noqa: F403
