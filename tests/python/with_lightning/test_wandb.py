"""horoscale.trackers.WandB with the real wandb package, which writes files while offline."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.ranks import run_ranks

pytest.importorskip("wandb")

BLOCK = 32 << 10
OFFLINE = {"WANDB_MODE": "offline", "WANDB_SILENT": "true"}
TRAIN = """
    import os, sys
    import numpy as np
    import horoscale.numpy as hvd
    from horoscale import trackers

    os.chdir(os.environ["FOLDER"])
    hvd.init()
    with trackers.WandB(project="digits", config={"rate": 0.5}, every=2) as tracker:
        for step in range(4):
            hvd.allreduce(np.ones(4), name="gradient")
            tracker.log({"loss": hvd.rank() + step / 4}, step)
    print("wandb" in sys.modules)
"""


def records(data: bytes) -> Iterator[bytes]:
    """The records of a run's file: a header, and blocks of parts in the format of LevelDB's log."""
    place, record = 7, b""
    while place + 7 <= len(data):
        if BLOCK - place % BLOCK < 7:  # the rest of a block is too small for a part
            place += BLOCK - place % BLOCK
            continue
        length, kind = struct.unpack_from("<HB", data, place + 4)
        record += data[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # the whole record, or its last part
            yield record
            record = b""


def history(folder: Path) -> list[dict[str, float]]:
    """The values logged at each step of the run in a folder."""
    from wandb.proto.wandb_internal_pb2 import Record

    [file] = folder.glob("wandb/offline-run-*/*.wandb")
    steps = []
    for data in records(file.read_bytes()):
        record = Record.FromString(data)
        if record.HasField("history"):
            items = record.history.item
            steps.append(
                {one.key or ".".join(one.nested_key): json.loads(one.value_json) for one in items}
            )
    return steps


def test_a_run_has_the_metrics_of_rank_0_and_the_runtimes(tmp_path: Path) -> None:
    ended = run_ranks(2, TRAIN, FOLDER=str(tmp_path), **OFFLINE)
    assert [one.returncode for one in ended] == [0, 0], ended[0].stderr
    assert [one.stdout for one in ended] == ["True\n", "False\n"]
    steps = history(tmp_path)
    assert [(one["_step"], one["loss"]) for one in steps] == [
        (0, 0.0),
        (1, 0.25),
        (2, 0.5),
        (3, 0.75),
    ]
    assert ["horoscale/bytes" in one for one in steps] == [True, False, True, False]
    assert ["horoscale/step_seconds" in one for one in steps] == [False, False, True, False]
    assert steps[2]["horoscale/bytes"] - steps[0]["horoscale/bytes"] == 2 * 4 * 8
