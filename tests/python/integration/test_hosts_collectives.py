"""Collectives over several simulated hosts: their bits, and the bytes sent between hosts."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from support.rank_processes import RankProcesses

PROGRAM = Path(__file__).with_name("hosts_collectives.py")
SMALL_CALLS = Path(__file__).with_name("hosts_one_hop.py")
LOSSY = Path(__file__).with_name("hosts_compression.py")
ADAPTIVE = Path(__file__).with_name("hosts_adaptive.py")
LOCAL_SGD = Path(__file__).with_name("hosts_local_sgd.py")
DIVIDED_STATE = Path(__file__).with_name("hosts_zero.py")
SUPPORT = Path(__file__).parents[1]
PATIENCE_S = 120


def run(hosts: str, program: Path, *arguments: str, folder: Path, **variables: str) -> None:
    """A job with a rank for each letter, which names its host."""
    path = os.pathsep.join(filter(None, [str(SUPPORT), os.environ.get("PYTHONPATH")]))
    with RankProcesses(
        len(hosts),
        program,
        *arguments,
        folder=folder,
        variables=variables | {"PYTHONPATH": path},
        variables_of={rank: {"HOROSCALE_HOSTNAME": host} for rank, host in enumerate(hosts)},
    ) as job:
        for rank in range(len(hosts)):
            job.wait(rank, PATIENCE_S)


@pytest.mark.parametrize(
    ("hosts", "partition_bytes"),
    [("ab", 1 << 24), ("aabb", 1 << 24), ("aabb", 1 << 18), ("abacb", 1 << 24), ("aaab", 100_000)],
)
def test_bits_and_bytes(hosts: str, partition_bytes: int, tmp_path: Path) -> None:
    run(hosts, PROGRAM, hosts, folder=tmp_path, HOROSCALE_PARTITION_BYTES=str(partition_bytes))


@pytest.mark.parametrize("hosts", ["ab", "abaca"])
def test_small_calls(hosts: str, tmp_path: Path) -> None:
    """Between hosts they also take one hop, whichever ranks wait, join or contradict."""
    run(hosts, SMALL_CALLS, folder=tmp_path)


def test_divided_training_state(tmp_path: Path) -> None:
    """Where ranks can't access each other's memory, parameters are gathered, with the same bits."""
    pytest.importorskip("torch")
    run("aab", DIVIDED_STATE, folder=tmp_path)


@pytest.mark.timeout(2 * PATIENCE_S)
@pytest.mark.parametrize(
    ("hosts", "partition_bytes"),
    [("ab", 1 << 24), ("aabb", 1 << 16), ("abacb", 1 << 14), ("aa", 1 << 24)],
)
def test_lossy_compression(hosts: str, partition_bytes: int, tmp_path: Path) -> None:
    """Losses are made up later, models learn, and on one host nothing is encoded."""
    pytest.importorskip("torch")
    run(hosts, LOSSY, hosts, folder=tmp_path, HOROSCALE_PARTITION_BYTES=str(partition_bytes))


@pytest.mark.timeout(2 * PATIENCE_S)
@pytest.mark.parametrize("hosts", ["ab", "aabbc", "aa"])
def test_adaptive_compression(hosts: str, tmp_path: Path) -> None:
    """All ranks follow the same choices, within the bound; on one host nothing is chosen."""
    pytest.importorskip("torch")
    run(hosts, ADAPTIVE, hosts, folder=tmp_path)


@pytest.mark.timeout(2 * PATIENCE_S)
@pytest.mark.parametrize("hosts", ["ab", "aabc"])
def test_local_sgd_with_lossy_compression(hosts: str, tmp_path: Path) -> None:
    """Ranks have the same parameters after each round, and learn."""
    pytest.importorskip("torch")
    run(hosts, LOCAL_SGD, folder=tmp_path)
