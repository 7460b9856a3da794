"""HOROSCALE_ADASUM_START_LEVEL: ranks that average before Adasum."""

from __future__ import annotations

import pytest
from support.ranks import run_ranks

SCRIPT = """
import os
rank = int(os.environ["HOROSCALE_RANK"])
os.environ[os.environ["PREFIX"] + "_ADASUM_START_LEVEL"] = os.environ["LEVELS"].split(",")[rank]
import numpy as np
import horoscale.numpy as hvd
hvd.init(process_sets="dynamic")
size = hvd.size()
own = np.zeros(size, np.float32)
own[rank] = 12
try:
    print(hvd.allreduce(own, op=hvd.Adasum, name="all").tolist())
    pair = hvd.add_process_set([0, 1])
    if rank < 2:
        print(hvd.allreduce(own[:2], op=hvd.Adasum, process_set=pair, name="pair").tolist())
    odd = hvd.add_process_set([0, 1, 2])
    if rank < 3:
        hvd.allreduce(own, op=hvd.Adasum, process_set=odd, name="odd")
except (ValueError, NotImplementedError) as error:
    print(type(error).__name__, error)
"""


@pytest.mark.parametrize("prefix", ["HOROSCALE", "HOROVOD"])
def test_hosts_average_first(prefix: str) -> None:
    ended = run_ranks(4, SCRIPT, LEVELS="2,2,2,2", PREFIX=prefix)
    assert [one.returncode for one in ended] == [0] * 4, [one.stderr for one in ended]
    for rank, one in enumerate(ended):
        lines = one.stdout.strip().split("\n")
        assert lines[0] == "[6.0, 6.0, 6.0, 6.0]"
        if rank < 2:
            assert lines[1] == "[6.0, 6.0]"
        if rank < 3:
            assert "ADASUM_START_LEVEL=2 makes groups of different sizes" in lines[-1]


def test_ranks_that_disagree_are_told() -> None:
    ended = run_ranks(2, SCRIPT, LEVELS="1,2", PREFIX="HOROSCALE")
    for one in ended:
        assert "rank 0: Adasum from level 1 on" in one.stderr
        assert "rank 1: Adasum from level 2 on" in one.stderr


def test_another_value_is_refused() -> None:
    [ended] = run_ranks(
        1, "import horoscale.numpy as hvd; hvd.init()", HOROSCALE_ADASUM_START_LEVEL="0"
    )
    assert 'HOROSCALE_ADASUM_START_LEVEL="0" does not parse' in ended.stderr
