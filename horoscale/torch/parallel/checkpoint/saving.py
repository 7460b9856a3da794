"""save(): each rank writes its part of a checkpoint, which is renamed when it is complete."""

from __future__ import annotations

import logging
import os
import shutil
import threading
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from horoscale.common import job
from horoscale.torch.parallel.checkpoint import folders
from horoscale.torch.parallel.checkpoint.checksums import Sums
from horoscale.torch.parallel.checkpoint.contents import Contents, contents_of
from horoscale.torch.parallel.checkpoint.layout import Extents
from horoscale.torch.parallel.checkpoint.model import Model, StageNames
from horoscale.torch.parallel.checkpoint.ranks import Ranks
from horoscale.torch.parallel.checkpoint.sharing import Told, Work, share, tell
from horoscale.torch.parallel.mesh import Mesh

if TYPE_CHECKING:
    from torch.distributed.checkpoint.storage import WriteResult

KEPT = 3
TILE_BYTES = 16 << 20

_log = logging.getLogger("horoscale")


class _Begun(NamedTuple):
    """A rank's message at the start of a save; the first rank's includes the folder."""

    told: Told
    folder: tuple[Path, Path] | None


class _Own(NamedTuple):
    """The data that this rank writes, independent of the model, which continues."""

    tensors: dict[tuple[str, Extents], torch.Tensor]
    values: dict[str, bytes]
    same: dict[str, str]  # keys of values, to the key that was written with the same bytes


class _Written(NamedTuple):
    """A rank's message about the data that it has written."""

    results: list[WriteResult]
    sums: Sums
    same: dict[str, str]


class Save:
    """A checkpoint that is being written."""

    def __init__(self, path: Path, write: Callable[[], None], asynchronous: bool) -> None:
        """Write now, or in a thread."""
        self._path = path
        self._failure: BaseException | None = None
        self._was_told = not asynchronous
        if not asynchronous:
            self._thread: threading.Thread | None = None
            write()
            return
        # Only the thread refers to the data, so that the memory is freed when it ends.
        self._thread = threading.Thread(target=self._run, args=(write,), name="horoscale-save")
        self._thread.start()

    @property
    def path(self) -> Path:
        """The final folder of the checkpoint, which torch's dcp.load() accepts."""
        return self._path

    def done(self) -> bool:
        """Return whether wait() would return or raise immediately."""
        return self._thread is None or not self._thread.is_alive()

    def wait(self) -> Path:
        """Wait until all ranks have written and the checkpoint is complete; return its folder.

        Raises CheckpointError or OSError if a rank could not write; earlier checkpoints then
        remain. Raises HorovodInternalError if a rank failed.
        """
        if self._thread is not None:
            self._thread.join()
        self._was_told = True
        if self._failure is not None:
            raise self._failure
        return self._path

    def finish(self) -> None:
        """Wait; log a failure that no caller has seen."""
        if self._thread is not None:
            self._thread.join()
        if self._failure is not None and not self._was_told:
            self._was_told = True
            _log.error("the checkpoint %s could not be written: %s", self._path, self._failure)

    def _run(self, write: Callable[[], None]) -> None:
        try:
            write()
        except BaseException as error:
            self._failure = error


_running: Save | None = None


def finish_running() -> None:
    """Wait for a running save, before another one or the end of the job."""
    global _running
    if _running is not None:
        _running.finish()
        _running = None


job.before_end(finish_running)


def save(
    directory: str | os.PathLike[str],
    model: Model,
    optimizer: torch.optim.Optimizer | None = None,
    mesh: Mesh | None = None,
    *,
    extra: Mapping[str, Any] | None = None,
    asynchronous: bool = False,
    step: int | None = None,
    keep: int | None = KEPT,
    rng: bool = False,
    names: StageNames | None = None,
) -> Save:
    """Write a checkpoint of a model that is divided among the ranks. Collective.

        par.save("checkpoints", model, optimizer, mesh, extra={"step": step})

    Each rank writes what it holds. If several ranks hold the same values, each writes a part of
    them. The files have the format of torch.distributed.checkpoint and are in a folder
    `directory/checkpoint-STEP`. The folder is written under a temporary name and renamed when all
    ranks are done, so a job that is killed at any moment leaves only complete checkpoints. All
    ranks must have access to the same directory, to which no other job writes.

    Args:
        directory: the folder of the checkpoints; created if necessary.
        model: the model, this rank's stage of it, or a Pipeline. Replicated parameters must be
            equal on the ranks that hold them. Buffers are written by the first rank.
        optimizer: any torch.optim.Optimizer of the model's parameters, or a DistributedOptimizer.
        mesh: the mesh. None: current_mesh() or, without one, all ranks of the job or this process.
        extra: further values to save, from the first rank: dicts with string keys, lists, numbers,
            strings, None and tensors (which are loaded to the CPU).
        asynchronous: whether to return when the values are copied, and write in a thread while
            training continues. At most one checkpoint is written at a time: the next save() or
            load() waits for it, and so does hvd.shutdown().
        step: the number of the checkpoint. None: one more than the newest.
        keep: the number of checkpoints to keep: this one and the newest of the others. None: all.
        rng: whether to save the states of torch's generators of each rank (of the first in tp).
        names: for stages whose names differ from those of the whole model: a function from the
            number of a stage and a name in it to the name in the whole model.

    Returns:
        A handle. `wait()` returns the folder when the checkpoint is complete. Unless
        `asynchronous`, it is already complete.

    Raises:
        ValueError: there is a checkpoint of this step, `step` is negative, `keep` is below 1, names
            of different stages collide, or the optimizer's parameters are not the model's.
        TypeError: a value has an unsupported type.
        CheckpointError: the ranks together do not have all of a tensor, or one of them failed.
        OSError: the checkpoint cannot be written.
        HorovodInternalError: a rank failed.
    """
    global _running
    if keep is not None and keep < 1:
        raise ValueError(f"keep={keep}: the checkpoint that is written is to remain")
    finish_running()
    ranks = Ranks.of(mesh)
    place = Path(directory).absolute()
    contents = Contents()
    own = _Own({}, {}, {})
    cleanup = ExitStack()

    def begin() -> _Begun:
        nonlocal contents
        contents = contents_of(model, optimizer, names, extra, rng, ranks)
        if not ranks.is_first:
            return _Begun(tell(contents), None)
        made = folders.begin(place, step)
        cleanup.callback(shutil.rmtree, made[0], ignore_errors=True)
        return _Begun(tell(contents), made)

    def copy() -> None:
        nonlocal own
        own = _own(contents, work, ranks.rank, copied=asynchronous)

    def write_all(own: _Own) -> None:
        with cleanup:
            _write_all(ranks, beside, path, own, work, keep)

    try:
        begun = ranks.all_do("begin", begin)
        assert begun[0].folder is not None
        beside, path = begun[0].folder
        work = share([one.told for one in begun], TILE_BYTES)
        # No rank continues to write if another one lacks memory for its copies.
        ranks.all_do("copied", copy)
    except BaseException:
        cleanup.close()
        raise
    handle = Save(path, partial(write_all, own), asynchronous)
    _running = handle
    return handle


def _own(contents: Contents, work: Work, rank: int, copied: bool) -> _Own:
    """Return the data that this rank writes: views of its memory, or copies on the CPU."""
    from horoscale.torch.parallel.checkpoint.dcp import serialized

    tensors = {}
    for held in contents.tensors:
        key = held.keys[0]
        by_box = {piece.box: piece.tensor for piece in held.pieces}
        for tile in work.tensors[key].tiles:
            if tile.rank == rank:
                inside = tile.box.moved(tile.of.offsets, (0,) * len(tile.of.offsets))
                value = inside.of(by_box[tile.of])
                if copied:
                    value = value.to("cpu", copy=True, memory_format=torch.contiguous_format)
                tensors[key, tile.box.offsets] = value
    values: dict[str, bytes] = {}
    same: dict[str, str] = {}
    written: dict[str, str] = {}  # keys by content, to find equal values
    for one in contents.values:
        key = one.keys[0]
        if work.values[key][1] != rank:
            continue
        text = None if isinstance(one.value, torch.Tensor | Mapping) else repr(one.value)
        if text is not None and text in written and "tensor" not in text:
            same[key] = written[text]
            continue
        values[key] = serialized(one.value)
        if text is not None:
            written[text] = key
    return _Own(tensors, values, same)


def _write_all(
    ranks: Ranks, beside: Path, path: Path, own: _Own, work: Work, keep: int | None
) -> None:
    """Write, and rename the checkpoint when all ranks are done. Collective."""
    # Imported here: it takes half a second, and only this module needs torch.distributed.
    from horoscale.torch.parallel.checkpoint import dcp

    def write() -> _Written:
        return _Written(*dcp.write(beside, ranks.rank, own.tensors, own.values, work), own.same)

    def finish() -> None:
        results = [one for part in written for one in part.results]
        sums = {place: one for part in written for place, one in part.sums.items()}
        same = {key: other for part in written for key, other in part.same.items()}
        dcp.finish(beside, work, results, sums, same)
        folders.finish(beside, path, keep)

    written = ranks.all_do("written", write)
    ranks.first_does("finished", finish)
