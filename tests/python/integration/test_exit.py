"""Ranks that end in unusual ways: what the others learn about it."""

from __future__ import annotations

import os
import secrets
import signal
import socket
import subprocess
import sys

import pytest
from support.ranks import clean_environment, run_ranks
from support.sockets import await_connection

from horoscale._core import StoreServer


def test_an_uncaught_exception_is_the_first_cause_that_peers_name() -> None:
    first, second = run_ranks(
        2,
        """
        import numpy as np
        import horoscale.numpy as hvd
        hvd.init()
        try:
            for step in range(10):
                if hvd.rank() == 1 and step == 3:
                    raise KeyError("no such weight")
                hvd.allreduce(np.ones(3), name="gradient")
        except hvd.RankFailedError as error:
            print(error.ranks, error.process_set)
            raise
        """,
    )
    assert second.returncode == 1
    assert first.returncode == 1
    assert first.stdout == "(1,) 0\n", first.stderr
    for part in ("rank 1", "KeyError", "no such weight"):
        assert part in first.stderr


def test_a_rank_that_ends_early_is_an_error_only_for_who_needs_it() -> None:
    first, second = run_ranks(
        2,
        """
        import numpy as np
        import horoscale.numpy as hvd
        alone = hvd.ProcessSet([0])
        hvd.init(process_sets=[alone])
        hvd.barrier()
        if hvd.rank() == 0:
            try:
                hvd.allreduce(np.ones(3), name="needs both")
            except hvd.RankFailedError as error:
                print(error)
            assert hvd.allreduce(np.ones(1), process_set=alone) == 1
        """,
    )
    assert (second.returncode, second.stderr) == (0, "")
    assert first.returncode == 0, first.stderr
    assert "rank 1 left" in first.stdout


def test_a_job_by_variables_whose_rank_0_serves_the_store() -> None:
    """Without any launcher: rank 0 serves at HOROSCALE_RENDEZVOUS."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    ended = run_ranks(
        3,
        "import horoscale.numpy as hvd; hvd.init(); print(hvd.allgather_object(hvd.rank()))",
        HOROSCALE_RENDEZVOUS=f"127.0.0.1:{port}",
        HOROSCALE_RENDEZVOUS_SERVED="0",
    )
    for one in ended:
        assert (one.returncode, one.stdout) == (0, "[0, 1, 2]\n"), one.stderr


def test_a_job_by_variables_can_be_joined_again_and_again() -> None:
    """Rank 0, which serves the store, may leave a job last, or join the next one first."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    ended = run_ranks(
        3,
        """
        import numpy as np
        import horoscale.numpy as hvd
        kept = []
        for generation in range(10):
            hvd.init()
            kept.append(hvd.empty_shared(1000))  # outlives its job
            hvd.allreduce(np.ones(2))
            hvd.shutdown()
        print("done")
        """,
        HOROSCALE_RENDEZVOUS=f"127.0.0.1:{port}",
        HOROSCALE_RENDEZVOUS_SERVED="0",
    )
    for one in ended:
        assert (one.returncode, one.stdout) == (0, "done\n"), one.stderr


@pytest.mark.parametrize("members", ["", "[2, 1, 0]"])
def test_a_rank_whose_init_failed_alone_meets_the_others_in_its_next(members: str) -> None:
    """Its failed call does not count as a start of the job."""
    ended = run_ranks(
        3,
        f"""
        import os
        import horoscale.numpy as hvd
        if os.environ["HOROSCALE_RANK"] == "1":
            os.environ["HOROSCALE_FUSION_THRESHOLD"] = "much"
            try:
                hvd.init({members})
            except ValueError as error:
                assert "FUSION_THRESHOLD" in str(error), error
            del os.environ["HOROSCALE_FUSION_THRESHOLD"]
        hvd.init({members})
        print(hvd.allgather_object(hvd.rank()))
        """,
        HOROSCALE_START_TIMEOUT="20",
    )
    for one in ended:
        assert (one.returncode, one.stdout) == (0, "[0, 1, 2]\n"), one.stderr


def test_ranks_that_do_not_come_are_named() -> None:
    (only,) = run_ranks(
        1,
        "import horoscale.numpy as hvd; hvd.init()",
        HOROSCALE_SIZE="3",
        HOROSCALE_START_TIMEOUT="1",
    )
    assert only.returncode == 1
    assert "timeout" in only.stderr
    assert "1" in only.stderr.splitlines()[-1]
    assert "2" in only.stderr.splitlines()[-1]


def test_a_wrong_secret_is_told() -> None:
    wrong = secrets.token_hex(16)
    ended = run_ranks(2, "import horoscale.numpy as hvd; hvd.init()", HOROSCALE_SECRET=wrong)
    for one in ended:
        assert one.returncode == 1
        assert "secret" in one.stderr


def test_ctrl_c_ends_an_init_that_waits() -> None:
    secret = secrets.token_hex(16)
    server = StoreServer("127.0.0.1", 0, secret)
    variables = {
        "HOROSCALE_RANK": "0",
        "HOROSCALE_SIZE": "2",
        "HOROSCALE_RENDEZVOUS": f"127.0.0.1:{server.port}",
        "HOROSCALE_RENDEZVOUS_SERVED": "1",
        "HOROSCALE_SECRET": secret,
        "HOROSCALE_START_TIMEOUT": "600",
    }
    with subprocess.Popen(
        [sys.executable, "-c", "import horoscale.numpy as hvd; hvd.init()"],
        env=clean_environment() | variables,
        stderr=subprocess.PIPE,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    ) as rank:
        try:
            await_connection(rank.pid, server.port, 60)  # it is in init()
            os.kill(rank.pid, signal.SIGINT)
            _, errors = rank.communicate(timeout=60)
        finally:
            rank.kill()
    assert errors.endswith(b"KeyboardInterrupt\n"), errors
    assert rank.returncode == -signal.SIGINT
