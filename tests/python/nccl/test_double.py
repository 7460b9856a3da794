"""Ranks as processes, with the test double: results, fallback, faults, --check-build."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.rank_processes import RankProcesses

PROGRAM = Path(__file__).with_name("rank.py")
SECONDS = 60


def _collectives_of(ranks: RankProcesses, size: int) -> list[dict[str, object]]:
    said = [json.loads(ranks.read_line(rank, SECONDS)) for rank in range(size)]
    for rank in range(size):
        ranks.wait(rank, SECONDS)
    for rank, one in enumerate(said):
        mean = sum(range(1, size + 1)) / size
        assert one["average"] == [mean, mean]
        assert one["rows"] == list(range(1, size + 1))
        assert one["gathered"] == [float(r) for r in range(size) for _ in range(2 * (r + 1))]
        assert one["exchanged"] == [float(rank)] * size
        assert one["device_buckets"] == 5
    return said


@pytest.mark.parametrize("size", [2, 4])
def test_collectives(size: int, variables: dict[str, str], tmp_path: Path) -> None:
    with RankProcesses(size, PROGRAM, "collectives", folder=tmp_path, variables=variables) as ranks:
        for one in _collectives_of(ranks, size):
            assert one["nccl_buckets"] == 5
        assert "host memory" not in ranks.errors(0)


# Of the seven buckets: NCCL can't add 16-bit integers, nor scale integers.
BUCKETS = {"FLOAT": 7, "BFLOAT": 7, "INT16": 1, "INT": 6, "UINT": 6}


def test_types(variables: dict[str, str], tmp_path: Path) -> None:
    size = 3
    with RankProcesses(size, PROGRAM, "types", folder=tmp_path, variables=variables) as ranks:
        said = [json.loads(ranks.read_line(rank, SECONDS)) for rank in range(size)]
        for rank in range(size):
            ranks.wait(rank, SECONDS)
    for rank, of_types in enumerate(said):
        first = 0 if rank == 0 else 1 + 2 * rank  # the lowest rank has one more row
        for name, one in of_types.items():
            assert one == {
                "sum": [6, 6, 0],
                "average": [2, 2, 0],
                "scaled": [4, 4, 0],
                "product": [6, 8, 0],
                "scattered": [3 * row for row in range(first, 3 + 2 * rank) for _ in range(2)],
                "broadcast": [1, 1],
                "group": [[3, 3 * i] for i in range(3)],
                "nccl_buckets": BUCKETS.get(name, BUCKETS[name.rstrip("0123456789")]),
            }, name


@pytest.mark.parametrize(
    ("of_rank_1", "reason"),
    [
        ({"HOROSCALE_LIBNCCL": "/nowhere/libnccl.so.2"}, "rank 1 can't: /nowhere/libnccl.so.2"),
        ({"NCCL_DOUBLE_VERSION": "21708"}, "which is too old: 2.18.0 or newer is required"),
        ({"NCCL_DOUBLE_VERSION": "22801"}, "rank 0 has 2.27.3, rank 1 has 2.28.1"),
    ],
    ids=["missing", "too-old", "different"],
)
def test_without_one_nccl_for_all_they_go_through_host_memory(
    of_rank_1: dict[str, str], reason: str, variables: dict[str, str], tmp_path: Path
) -> None:
    with RankProcesses(
        2,
        PROGRAM,
        "collectives",
        folder=tmp_path,
        variables=variables,
        variables_of={1: of_rank_1},
    ) as ranks:
        for one in _collectives_of(ranks, 2):
            assert one["nccl_buckets"] == 0
        said = ranks.errors(0)
        assert said.count("go through host memory") == 1
        assert reason in said
        assert "host memory" not in ranks.errors(1)


def test_nccl_that_is_asked_for_and_missing_is_an_error(
    variables: dict[str, str], tmp_path: Path
) -> None:
    wanted = variables | {"HOROSCALE_BACKEND": "nccl"}
    with RankProcesses(
        2,
        PROGRAM,
        "collectives",
        folder=tmp_path,
        variables=wanted,
        variables_of={1: {"HOROSCALE_LIBNCCL": "/nowhere/libnccl.so.2"}},
    ) as ranks:
        for rank in range(2):
            assert ranks.processes[rank].wait(SECONDS) != 0
            assert "HOROSCALE_BACKEND=nccl, but the members of process set 0" in ranks.errors(rank)


def test_a_killed_rank_ends_the_kernels_of_the_others(
    variables: dict[str, str], tmp_path: Path
) -> None:
    with RankProcesses(3, PROGRAM, "survive", folder=tmp_path, variables=variables) as ranks:
        for rank in range(2):
            said = json.loads(ranks.read_line(rank, SECONDS))
            assert said == {"error": "RankFailedError", "ranks": [2]}
            ranks.wait(rank, SECONDS)


MESSAGE_SIZES = [0, 1, 4096, 4097, 1 << 20]


@pytest.mark.parametrize("size", [2, 3])
def test_messages(size: int, variables: dict[str, str], tmp_path: Path) -> None:
    with RankProcesses(size, PROGRAM, "messages", folder=tmp_path, variables=variables) as ranks:
        for rank in range(size):
            said = json.loads(ranks.read_line(rank, SECONDS))
            before = (rank - 1) % size
            assert said == {
                "sums": [float(count * (before + 1)) for count in MESSAGE_SIZES],
                "tags": [10 * before + 2, 10 * before, 10 * before + 1],
                "sources": [other for other in range(size) if other != rank],
                "mismatch": True,
                "errors": ["MismatchError"] * 2,
                "received": len(MESSAGE_SIZES) + 3 + size - 1,
            }
        for rank in range(size):
            ranks.wait(rank, SECONDS)


@pytest.mark.parametrize("size", [2, 3])
def test_messages_by_nccl(size: int, variables: dict[str, str], tmp_path: Path) -> None:
    with RankProcesses(
        size, PROGRAM, "nccl_messages", folder=tmp_path, variables=variables
    ) as ranks:
        for rank in range(size):
            said = json.loads(ranks.read_line(rank, SECONDS))
            before, after = (rank - 1) % size, (rank + 1) % size
            assert said["received"] == [[10 * before + s, 10 * after + s] for s in range(10)]
            assert said["nccl_messages"] == 40
        for rank in range(size):
            ranks.wait(rank, SECONDS)


def test_messages_that_cross_are_one_launch(variables: dict[str, str], tmp_path: Path) -> None:
    with RankProcesses(
        2, PROGRAM, "crossing_messages", folder=tmp_path, variables=variables
    ) as ranks:
        for rank, alone in enumerate(("Send", "Recv")):
            said = json.loads(ranks.read_line(rank, SECONDS))
            assert said["received"] == 1 - rank
            first, together = said["calls"]
            assert first == alone
            assert set(together.split("+")) == {"Send", "Recv"}
            ranks.wait(rank, SECONDS)


@pytest.mark.parametrize("size", [2, 3])
def test_messages_of_torch(size: int, variables: dict[str, str], tmp_path: Path) -> None:
    pytest.importorskip("torch")
    program = PROGRAM.with_name("torch_rank.py")
    with RankProcesses(size, program, folder=tmp_path, variables=variables) as ranks:
        for rank in range(size):
            assert ranks.processes[rank].wait(SECONDS) == 0, ranks.errors(rank)
            said = json.loads(ranks.read_line(rank, SECONDS))
            assert said["waits"] > 6
            assert said["streams"] == [0]


@pytest.mark.parametrize("size", [2, 3])
def test_process_groups(size: int, variables: dict[str, str], tmp_path: Path) -> None:
    pytest.importorskip("torch")
    program = PROGRAM.with_name("torch_distributed_rank.py")
    with RankProcesses(size, program, folder=tmp_path, variables=variables) as ranks:
        for rank in range(size):
            assert ranks.processes[rank].wait(SECONDS) == 0, ranks.errors(rank)
            said = json.loads(ranks.read_line(rank, SECONDS))
            assert said["waits"] >= said["operations"]
            assert said["nccl_buckets"] > 0


def test_what_a_killed_rank_had_sent_is_received(variables: dict[str, str], tmp_path: Path) -> None:
    with RankProcesses(3, PROGRAM, "lose_sender", folder=tmp_path, variables=variables) as ranks:
        for rank in range(2):
            said = json.loads(ranks.read_line(rank, SECONDS))
            assert said == {"received": 2.0, "errors": [["RankFailedError", [2]]] * 2}
            ranks.wait(rank, SECONDS)


@pytest.mark.parametrize(
    ("version", "line"),
    [
        ("22703", "[X] NCCL: NCCL 2.27.3, {double}; CUDA 12.8, {double}"),
        (
            "21708",
            "[ ] NCCL: {double} is NCCL 2.17.8, which is too old: 2.18.0 or newer is required",
        ),
    ],
)
def test_check_build_says_what_was_found(
    version: str, line: str, variables: dict[str, str], double: Path
) -> None:
    said = subprocess.run(
        [sys.executable, "-m", "horoscale.runner", "--check-build"],
        env=os.environ | variables | {"NCCL_DOUBLE_VERSION": version},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert line.format(double=double) in said
