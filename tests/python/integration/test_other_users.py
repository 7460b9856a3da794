"""Other users of the host can't join a job without a secret, nor inject pickles."""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from support.ranks import clean_environment
from test_foreign_launchers import free_port

PATIENCE_S = 60.0
NOBODY = 65534
SOMEBODY = 54321  # has no processes and no account


pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="becoming another user needs root")

BECOME = """
import os, sys
user = int(sys.argv[1])
os.setgroups([])
os.setgid(user)
os.setuid(user)
"""


def run_as(
    user: int, imports: str, code: str, *arguments: object, **variables: str
) -> tuple[int, str, str]:
    """The status and output of a program that another user runs.

    It changes the user after its imports, which may be readable by root only.
    """
    ended = subprocess.run(
        [sys.executable, "-c", imports + BECOME + code, str(user), *map(str, arguments)],
        cwd="/",
        env=clean_environment() | variables,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    return ended.returncode, ended.stdout, ended.stderr


RANK = """
import sys, horoscale.numpy as hvd
hvd.init()
sys.stdout.write(str(hvd.allgather_object(f"rank {hvd.rank()}")))
"""
# Joins as rank 1 with a pickle that creates a folder when it is loaded.
ATTACKER = """
class Bomb:
    def __reduce__(self):
        return os.mkdir, (sys.argv[2],)
hvd.init()
hvd.allgather_object(Bomb())
"""


@contextmanager
def own_rank(**variables: str) -> Iterator[subprocess.Popen[str]]:
    """A rank of this user."""
    with ExitStack() as stack:
        process = stack.enter_context(
            subprocess.Popen(
                [sys.executable, "-c", RANK],
                env=clean_environment() | variables,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
        stack.callback(process.kill)
        yield process


def test_another_user_does_not_join_a_job_without_a_secret(tmp_path: Path) -> None:
    """Neither with a guessed secret, nor with the file in which this user's ranks find theirs."""
    harm = tmp_path / "harm"
    port = free_port()
    file = Path(f"/tmp/horoscale-{os.geteuid()}/{port}")
    job = {
        "HOROSCALE_SIZE": "2",
        "HOROSCALE_RENDEZVOUS": f"127.0.0.1:{port}",
        "HOROSCALE_START_TIMEOUT": str(PATIENCE_S),
    }
    attacks = {
        # Waits for the store, and is rejected by it: from then on it is served.
        "different secrets": {"HOROSCALE_SECRET": secrets.token_hex(32)},
        "Permission denied": {"HOROSCALE_SECRET_FILE": str(file)},
        f"/tmp/horoscale-{NOBODY}": {"HOROSCALE_START_TIMEOUT": "0.5"},
    }
    with own_rank(HOROSCALE_RANK="0", **job) as first:
        for told, variables in attacks.items():
            attack = job | {"HOROSCALE_RANK": "1"} | variables
            status, _, err = run_as(
                NOBODY, "import horoscale.numpy as hvd", ATTACKER, harm, **attack
            )
            assert status == 1
            assert told in err, err
        assert file.stat().st_mode & 0o777 == 0o600
        with own_rank(HOROSCALE_RANK="1", **job) as second:
            for rank in (first, second):
                out, err = rank.communicate(timeout=PATIENCE_S)
                assert out == "['rank 0', 'rank 1']", err
    assert not harm.exists()
    assert not file.exists()


@pytest.mark.parametrize("kind", ["their folder", "a link", "an open folder"])
def test_a_place_that_somebody_else_has_prepared_is_not_used(tmp_path: Path, kind: str) -> None:
    """No secret is written where another user could read or replace it."""
    place = Path(f"/tmp/horoscale-{SOMEBODY}")
    target = tmp_path / "target"
    target.mkdir()
    shutil.rmtree(place, ignore_errors=True)
    try:
        if kind == "a link":
            os.chown(target, SOMEBODY, SOMEBODY)
            target.chmod(0o700)
            place.symlink_to(target)
        else:
            place.mkdir()
            owner = NOBODY if kind == "their folder" else SOMEBODY
            os.chown(place, owner, owner)
            place.chmod(0o777)
        status, _, err = run_as(
            SOMEBODY,
            "from horoscale._core import StoreServer",
            "StoreServer('127.0.0.1', 0, None)",
        )
        left = list(place.iterdir())
    finally:
        if place.is_symlink():
            place.unlink()
        shutil.rmtree(place, ignore_errors=True)
    told = {
        "their folder": f"belongs to user {NOBODY}",
        "a link": "opening the directory",
        "an open folder": "is accessible to other users",
    }
    assert status == 1
    assert str(place) in err
    assert told[kind] in err
    assert left == []


# Reads our rendezvous from torch's store, and overwrites it.
TORCH = """
import sys, zlib
from datetime import timedelta
import torch.distributed as dist
"""
READS_AND_WRITES = """
store = dist.TCPStore("localhost", int(sys.argv[2]), 2, False, timedelta(seconds=60))
key = f"horoscale/attempt0/rendezvous/{zlib.crc32(b'()'):08x}"
sys.stdout.write(store.get(key).decode())
store.set(key, "127.0.0.1:1 " + "secret" * 9)
"""


def test_another_user_learns_and_changes_nothing_by_torchs_store() -> None:
    pytest.importorskip("torch")
    port = free_port()
    job = {"WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": str(port)}
    with own_rank(RANK="0", HOROSCALE_START_TIMEOUT=str(PATIENCE_S), **job):
        status, told, err = run_as(NOBODY, TORCH, READS_AND_WRITES, port)
        assert status == 0, err
        assert told.isdigit(), "it tells more than a port"
        with own_rank(RANK="1", **job) as second:
            _, err = second.communicate(timeout=PATIENCE_S)
    assert second.returncode == 1
    assert "where a port was expected" in err


# Waits for both jobs, and writes the second job's rendezvous to the first job's torch store.
LEADS_ELSEWHERE = """
stores = [
    dist.TCPStore("localhost", int(port), 2, False, timedelta(seconds=60)) for port in sys.argv[2:]
]
key = f"horoscale/attempt0/rendezvous/{zlib.crc32(b'()'):08x}"
stores[0].get(key)
stores[0].set(key, stores[1].get(key))
"""


@pytest.mark.parametrize(
    ("local_size", "secret"),
    [("2", ""), ("2", secrets.token_hex(32)), ("1", secrets.token_hex(32))],
    ids=["no secret", "one secret for both", "one secret for both, as on several hosts"],
)
def test_torchs_store_leads_no_rank_to_another_job_of_its_user(
    local_size: str, secret: str
) -> None:
    pytest.importorskip("torch")
    ports = free_port(), free_port()
    stray, whole = (
        {
            "WORLD_SIZE": "2",
            "LOCAL_WORLD_SIZE": local_size,
            "MASTER_ADDR": "localhost",
            "MASTER_PORT": str(port),
            "HOROSCALE_SECRET": secret,
            "HOROSCALE_START_TIMEOUT": str(PATIENCE_S),
        }
        for port in ports
    )
    with own_rank(RANK="0", **stray), own_rank(RANK="0", **whole) as first:
        status, _, err = run_as(NOBODY, TORCH, LEADS_ELSEWHERE, *ports)
        assert status == 0, err
        with own_rank(RANK="1", **stray) as led:
            out, err = led.communicate(timeout=PATIENCE_S)
        assert led.returncode == 1, out
        assert "can't be authenticated as the store of this job" in err
        assert f"MASTER_PORT={ports[0]}" in err
        assert ("different jobs" if secret else f"MASTER_PORT={ports[1]}") in err
        with own_rank(RANK="1", **whole) as second:
            for rank in (first, second):
                out, err = rank.communicate(timeout=PATIENCE_S)
                assert out == "['rank 0', 'rank 1']", err
