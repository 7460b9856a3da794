"""Rank 2 is killed in the middle of training; the others report the error and its delay."""

from __future__ import annotations

import os
import signal
import sys
import time

import numpy as np

import horoscale.numpy as hvd

hvd.init()
value = np.ones(4)
for _ in range(20):
    hvd.allreduce(value, name="loss")
began = hvd.allgather_object(time.time(), name="clocks")
try:
    hvd.barrier()  # all ranks have the clocks
    if hvd.rank() == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    for _ in range(1000):
        hvd.allreduce(value, name="loss")
except hvd.HorovodInternalError as error:
    seconds = time.time() - max(began)
    print(f"rank {hvd.rank()} after {seconds:.3f} s: {type(error).__name__}: {error}", flush=True)
    sys.exit(3)
