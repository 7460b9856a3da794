"""The MXNet binding on several ranks, with both of MXNet's engines."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from support.examples import EXAMPLES, accuracy_of
from support.ranks import clean_environment

pytest.importorskip("mxnet")

SECONDS = 100
PROGRAM = Path(__file__).with_name("rank.py")
COLLECTIVES = ("reductions", "groups", "movement", "layouts", "errors", "again")
TRAINING = ("trainer", "optimizer", "parameters")

pytestmark = pytest.mark.timeout(2 * SECONDS)


def run(
    ranks: int, *command: str | Path, flags: tuple[str, ...] = (), status: int = 0, **more: str
) -> str:
    launcher = (sys.executable, "-m", "horoscale.runner", "-np", str(ranks), *flags, sys.executable)
    job = subprocess.run(
        [*launcher, *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=SECONDS,
        env=clean_environment() | {"OMP_NUM_THREADS": "1"} | more,
        check=False,
    )
    assert job.returncode == status, job.stdout[-10_000:]
    return job.stdout


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_collectives_are_numpys(ranks: int) -> None:
    cases = [case for case in COLLECTIVES if ranks > 1 or case != "errors"]
    run(ranks, PROGRAM, *cases)


def test_collectives_with_the_naive_engine() -> None:
    run(2, PROGRAM, *COLLECTIVES, MXNET_ENGINE_TYPE="NaiveEngine")


def test_ranks_may_push_in_any_order_and_drop_inputs() -> None:
    run(2, PROGRAM, "orders")


@pytest.mark.parametrize("ranks", [2, 4])
def test_training_is_that_of_one_process(ranks: int) -> None:
    run(ranks, PROGRAM, *TRAINING)


def test_process_sets() -> None:
    run(3, PROGRAM, "sets")


def test_a_dead_rank_is_named() -> None:
    assert run(2, PROGRAM, "dead").count("survived") == 1


def test_horovods_names() -> None:
    program = (
        "import horovod.mxnet as hvd, horovod.mxnet.mpi_ops as ops, mxnet as mx; hvd.init(); "
        "print(ops.allreduce(mx.nd.ones(1), average=False).asscalar(), hvd.__name__)"
    )
    assert run(2, "-c", program, flags=("--compat",)).count("2.0 horoscale.mxnet") == 2


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("example", ["mxnet_digits_gluon.py", "mxnet_digits_module.py"])
def test_examples(example: str, ranks: int) -> None:
    assert accuracy_of(run(ranks, EXAMPLES / example)) >= 0.93
