"""The tags of this package's messages: ranges that programs do not use, up to 2^62."""

CALIBRATION = 2**61 - 1
RING_ATTENTION = range(2**61, 2**61 + 2**60)
PIPELINES = range(2**61 + 2**60, 2**62 - 1)
WEIGHTS = range(2**62 - 1, 2**62)
