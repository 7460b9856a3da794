"""The divisor of Average once ranks have joined."""

from __future__ import annotations

import pytest
from support.ranks import run_ranks

SCRIPT = """
import os
rank = int(os.environ["HOROSCALE_RANK"])
value = os.environ["JOIN_AVERAGE"].split(",")[rank]
if value:
    os.environ["HOROSCALE_JOIN_AVERAGE"] = value
import numpy as np
import horoscale.numpy as hvd
hvd.init()
averages = []
if rank != 2:
    for op in (hvd.Average, hvd.Sum):
        averages.append(float(hvd.allreduce(np.full(4, 6.0), op=op)[0]))
hvd.join()
averages.append(float(hvd.allreduce(np.full(4, 6.0))[0]))
print(averages)
"""


@pytest.mark.parametrize(
    ("values", "average"),
    [
        (",,", 4.0),
        ("participants,participants,participants", 6.0),
        ("participants,size,size", 6.0),  # rank 0 decides
        ("size,participants,participants", 4.0),
    ],
    ids=["default", "participants", "by_rank_0", "not_by_others"],
)
def test_average_with_a_joined_rank(values: str, average: float) -> None:
    ended = run_ranks(3, SCRIPT, JOIN_AVERAGE=values)
    assert [one.returncode for one in ended] == [0, 0, 0], [one.stderr for one in ended]
    for rank, one in enumerate(ended):
        expected = [6.0] if rank == 2 else [average, 12.0, 6.0]
        assert one.stdout.strip() == str(expected)


def test_another_value_is_refused() -> None:
    [ended] = run_ranks(
        1,
        "import horoscale.numpy as hvd; hvd.init()",
        HOROSCALE_JOIN_AVERAGE="everybody",
    )
    assert 'HOROSCALE_JOIN_AVERAGE="everybody" does not parse: expected size' in ended.stderr
