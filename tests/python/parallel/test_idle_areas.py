"""Shared memory of messages is given back when it has been idle for a while."""

from __future__ import annotations

import os
import time
from pathlib import Path

import numpy as np
import pytest

import horoscale.numpy as hvd

BYTES = 4 << 20  # both ranks copy messages of up to this size
GROWN_KIB, LEFT_KIB = 256, 128  # of the area's 1,024
SECONDS = 40


def shared_kib() -> int:
    """The shared memory that this process has mapped and touched."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("RssShmem:")[1].split()[0])


@pytest.mark.skipif(os.environ.get("HOROSCALE_BACKEND") == "mpi", reason="ranks share no memory")
def test_memory_of_idle_areas_is_given_back() -> None:
    peer = hvd.rank() ^ 1
    if hvd.size() % 2 != 0:
        pytest.skip("in pairs")
    data, into = (np.ones(BYTES, np.uint8) for _ in range(2))
    pair = [hvd.P2POp(hvd.send, data, peer), hvd.P2POp(hvd.recv, into, peer)]
    small = [hvd.P2POp(hvd.send, data[:10], peer), hvd.P2POp(hvd.recv, into[:10], peer)]
    for _ in range(100):
        hvd.batch(small)
    before = shared_kib()
    grown = 0
    for _ in range(100):  # how much its sender copies depends on timing
        hvd.batch(pair)
        grown = max(grown, shared_kib() - before)
    if hvd.allreduce(np.array([grown]), op=hvd.Min)[0] <= GROWN_KIB:
        pytest.skip("a rank's private memory can't be read by the others")
    deadline = time.monotonic() + SECONDS
    while (left := shared_kib() - before) > LEFT_KIB:
        assert time.monotonic() < deadline, f"{left} KiB of {grown} KiB are left"
        time.sleep(0.1)
    hvd.barrier()
