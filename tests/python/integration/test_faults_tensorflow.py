"""A rank dies while TensorFlow operations are pending: the others' errors name it."""

from __future__ import annotations

import importlib.util

import pytest
from support.ranks import run_ranks

SCRIPT = """
import os, sys
import tensorflow as tf
import horoscale.tensorflow as hvd

hvd.init()
step = tf.function(lambda x: [hvd.allreduce(x + float(i), op=hvd.Sum) for i in range(20)])
assert float(step(tf.constant(0.0))[1]) == hvd.size()
if hvd.rank() == 1:
    os._exit(3)
for run in (step, hvd.allreduce):
    try:
        run(tf.constant(0.0))
    except tf.errors.UnknownError as error:
        assert "rank 1" in str(error), error
    else:
        sys.exit("no error")
print("told")
"""


@pytest.mark.skipif(importlib.util.find_spec("tensorflow") is None, reason="needs tensorflow")
def test_survivors_are_told() -> None:
    ranks = run_ranks(3, SCRIPT)
    assert [rank.returncode for rank in ranks] == [0, 3, 0], ranks
    assert ranks[0].stdout == ranks[2].stdout == "told\n"
