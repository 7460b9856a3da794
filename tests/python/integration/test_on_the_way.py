"""An attacker on the path between two hosts: what it sees, and that tampering is detected."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from on_the_way import NAME, OBJECT, TENSOR
from support import namespaces, tap
from support.namespaces import NetworkHosts
from support.rank_processes import RankProcesses
from support.tap import Tap

pytestmark = [
    pytest.mark.skipif(namespaces.why_not() is not None, reason=str(namespaces.why_not())),
    pytest.mark.skipif(not os.path.exists("/dev/net/tun"), reason="there are no tun devices"),
]

PROGRAM = Path(__file__).with_name("on_the_way.py")
PATIENCE_S = 60
WATCHED = {"tensor": TENSOR, "name": NAME.encode(), "object": OBJECT.encode()}


@pytest.fixture(scope="module")
def hosts() -> Iterator[NetworkHosts]:
    with NetworkHosts(2) as made:
        yield made


def run(
    hosts: NetworkHosts, folder: Path, flip: bytes = b"", **variables: str
) -> tuple[Tap, list[str]]:
    """The job with the attacker on the path; returns the ranks' output."""
    chosen = {"HOROSCALE_NETWORK_INTERFACE": tap.DEVICE, **variables}
    with (
        Tap(hosts, flip) as somebody,
        RankProcesses(
            2, PROGRAM, folder=folder, variables=chosen, hosts=hosts, host_of=[0, 1]
        ) as job,
    ):
        for rank in range(2):
            job.wait(rank, PATIENCE_S)
        printed = [process.stdout.read().decode() for process in job.processes if process.stdout]
    assert somebody.seen, "the job did not use the link"
    return somebody, printed


def test_without_encryption_everything_can_be_seen(hosts: NetworkHosts, tmp_path: Path) -> None:
    somebody, printed = run(hosts, tmp_path)
    assert {name for name, text in WATCHED.items() if text in somebody.seen} == set(WATCHED)
    assert all(text.endswith("all well\n") for text in printed), printed


def test_with_encryption_nothing_can(hosts: NetworkHosts, tmp_path: Path) -> None:
    somebody, printed = run(hosts, tmp_path, HOROSCALE_ENCRYPT="1")
    assert [name for name, text in WATCHED.items() if text in somebody.seen] == []
    assert all(text.endswith("all well\n") for text in printed), printed


@pytest.mark.parametrize("what", ["name", "object"])
def test_what_was_changed_is_not_believed(what: str, hosts: NetworkHosts, tmp_path: Path) -> None:
    somebody, printed = run(hosts, tmp_path, WATCHED[what])
    assert somebody.flipped
    assert all("failed: " in text for text in printed), printed
    assert not any("all well" in text for text in printed)
    told = [text for text in printed if "failed authentication" in text]
    assert told, printed
    assert all("rank 0" in text or "rank 1" in text for text in told)
    if what == "name":
        assert not any("reduced" in text for text in printed), printed
    else:  # one of the ranks received the modified one
        unpickled = "rank {} has unpickled rank {}"
        crossed = [unpickled.format(own, 1 - own) in printed[own] for own in range(2)]
        assert not all(crossed), printed
        assert not any(unpickled.format(own, 1 - own) in text for own, text in enumerate(printed)
                       if "failed authentication" in text), printed  # fmt: skip
