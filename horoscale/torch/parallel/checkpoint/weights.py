"""save_weights() and load_weights(): whole weights in safetensors files, as libraries use them.

FOLDER/model.safetensors                                      or, if it would be too large,
FOLDER/model-00001-of-00002.safetensors … model.safetensors.index.json
"""

from __future__ import annotations

import importlib
import json
import os
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import torch

from horoscale.common.durable import sync_file, sync_folder, write_text
from horoscale.torch.messages import recv, send
from horoscale.torch.parallel.checkpoint.contents import Contents, Held, model_contents
from horoscale.torch.parallel.checkpoint.errors import CheckpointError
from horoscale.torch.parallel.checkpoint.flat import publish
from horoscale.torch.parallel.checkpoint.layout import Box
from horoscale.torch.parallel.checkpoint.loading import check_names, match, raise_problems
from horoscale.torch.parallel.checkpoint.model import (
    Model,
    StageNames,
    module_of,
    tensors_of,
)
from horoscale.torch.parallel.checkpoint.model_tensor import ModelTensor
from horoscale.torch.parallel.checkpoint.ranks import Ranks
from horoscale.torch.parallel.checkpoint.saving import finish_running
from horoscale.torch.parallel.checkpoint.sharing import Tensor, share, tell
from horoscale.torch.parallel.mesh import Mesh
from horoscale.torch.parallel.tags import WEIGHTS

_ENDING = ".safetensors"
_INDEX = "model.safetensors.index.json"
_FILE_BYTES = 5_000_000_000


def save_weights(
    path: str | os.PathLike[str],
    model: Model,
    mesh: Mesh | None = None,
    *,
    max_file_bytes: int = _FILE_BYTES,
    names: StageNames | None = None,
) -> None:
    """Write the whole weights of a divided model to safetensors files. Collective.

    The first rank writes them from parts that the others send. It needs memory for one file at a
    time. Names and shapes are those of the model that was passed to tensor_parallel(), so
    transformers' from_pretrained() can read a model that a plan has divided. A parameter with
    several names, such as a tied embedding, is written under the first one.

    Args:
        path: a folder, in which files get the names that transformers uses; or, if it ends in
            ".safetensors", one file.
        model: as in save().
        mesh: as in save().
        max_file_bytes: for a folder, the maximum size of a file's tensors. A larger tensor gets its
            own file.
        names: as in save().

    Raises:
        ImportError: safetensors is not installed.
        ValueError, TypeError, CheckpointError, OSError, HorovodInternalError: as in save().
    """
    finish_running()
    ranks = Ranks.of(mesh)
    own: dict[str, Held] = {}

    def begin() -> Any:
        _library("safetensors.torch")  # on all ranks, so that all of them raise the error
        held = model_contents(model, names, ranks, prefix="")
        own.update({one.keys[0]: one for one in held})
        return tell(Contents(held))

    work = share(ranks.all_do("weights", begin), tile_bytes=None)
    target = Path(path).absolute()
    tensors = list(work.tensors.values())
    alone = target.suffix == _ENDING
    files = [tensors] if alone else list(_packed(tensors, max_file_bytes))
    writer = _Writer(target, [target.name] if alone else _file_names(len(files)))
    try:
        for number, part in enumerate(files):
            # Errors are reported after all have sent, so that no rank waits for another.
            gathered = {one.keys[0]: _gather(one, own, ranks) for one in part}
            if ranks.is_first:
                there = {key: one for key, one in gathered.items() if one is not None}
                writer.write(number, there)
        ranks.first_does("weights written", lambda: writer.finish(files))
    finally:
        writer.clear()


def load_weights(
    path: str | os.PathLike[str],
    model: Model,
    mesh: Mesh | None = None,
    *,
    strict: bool = True,
    names: StageNames | None = None,
) -> None:
    """Load whole weights from safetensors files into a divided model, in place. Collective.

    Each rank reads the parts that it needs.

    Args:
        path: a file, or a folder as written by transformers, with model.safetensors, or with
            model.safetensors.index.json and the files that it names.
        model: as in load().
        mesh: as in load().
        strict: as in load().
        names: as in load().

    Raises:
        ImportError: safetensors is not installed.
        CheckpointError, ValueError, TypeError, HorovodInternalError: as in load().
    """
    finish_running()
    ranks = Ranks.of(mesh)
    source = Path(path).absolute()
    tensors: list[ModelTensor] = []

    def plan() -> set[str]:
        _library("safetensors")
        tensors.extend(tensors_of(model, names, ranks.stage))
        return {name for one in tensors for name in one.names}

    everyone = ranks.all_do("weights", plan)
    with ExitStack() as opened:
        stored: dict[str, Any] = {}

        def compare() -> Any:
            stored.update(_slices(source, opened))
            shapes = {name: one.get_shape() for name, one in stored.items()}
            wanted = match(tensors, shapes, source)
            raise_problems(wanted.problems)
            if strict:
                check_names(tensors, list(stored), everyone, source)
            return wanted.pieces

        def read() -> None:
            with torch.no_grad():
                for name, parts in pieces.items():
                    for part in parts:
                        part.tensor.copy_(_read(stored[name], part.box))

        pieces: dict[str, Any] = {}
        # Stored here, not returned: the views are for this rank only.
        ranks.all_do("weights compared", lambda: pieces.update(compare()))
        ranks.all_do("weights read", read)
    publish(module_of(model))


def _library(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ImportError(
            "whole weights are files of safetensors, which is not installed: "
            "pip install safetensors"
        ) from error


# ---------------------------------------------------------------- writing


def _gather(tensor: Tensor, own: Mapping[str, Held], ranks: Ranks) -> torch.Tensor | None:
    """Return a whole tensor on the first rank; the others send it their parts."""
    key = tensor.keys[0]
    whole = torch.empty(tensor.shape, dtype=tensor.dtype) if ranks.is_first else None
    for tile in tensor.tiles:
        if ranks.rank not in (0, tile.rank):
            continue
        value: torch.Tensor | None = None
        if ranks.rank == tile.rank:
            (value,) = (one.tensor for one in own[key].pieces if one.box == tile.of)
        if tile.rank != 0:
            value = _moved(value, tile.box, tensor.dtype, tile.rank)
        if whole is not None and value is not None:
            tile.box.of(whole).copy_(value)
    return whole


def _moved(
    value: torch.Tensor | None, box: Box, dtype: torch.dtype, sender: int
) -> torch.Tensor | None:
    """Send a value to the first rank, or receive it there. Sent as bytes, to support any dtype."""
    if box.numel == 0:
        return None
    if value is not None:
        send(value.detach().cpu().contiguous().flatten().view(torch.uint8), 0, WEIGHTS[0])
        return None
    received = torch.empty(box.numel, dtype=dtype)
    recv(received.view(torch.uint8), sender, WEIGHTS[0])
    return received.view(box.sizes)


def _packed(tensors: Sequence[Tensor], max_bytes: int) -> Iterator[list[Tensor]]:
    """Divide a list of tensors into lists of at most `max_bytes` bytes, or of one tensor."""
    part: list[Tensor] = []
    total = 0
    for one in tensors:
        size = _bytes_of(one)
        if part and total + size > max_bytes:
            yield part
            part, total = [], 0
        part.append(one)
        total += size
    yield part


def _bytes_of(tensor: Tensor) -> int:
    return Box.of_all(tensor.shape).numel * tensor.dtype.itemsize


def _file_names(number: int) -> list[str]:
    if number == 1:
        return [f"model{_ENDING}"]
    return [f"model-{one:05}-of-{number:05}{_ENDING}" for one in range(1, number + 1)]


class _Writer:
    """Writes files under temporary names and renames them when all are complete."""

    def __init__(self, target: Path, names: Sequence[str]) -> None:
        self._folder = target.parent if target.suffix == _ENDING else target
        self._alone = target.suffix == _ENDING
        self._names = names
        self._beside = [f".{name}.{secrets.token_hex(4)}" for name in names]
        self._failure: Exception | None = None

    def write(self, number: int, tensors: Mapping[str, torch.Tensor]) -> None:
        """Write a file and sync it to disk; finish() raises its errors."""
        if self._failure is not None:
            return
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            path = self._folder / self._beside[number]
            save_file = _library("safetensors.torch").save_file
            save_file(dict(tensors), path, metadata={"format": "pt"})
            sync_file(path)
        except Exception as error:  # the library has its own exceptions
            self._failure = error

    def finish(self, files: Sequence[Sequence[Tensor]]) -> None:
        """Rename the files to their final names."""
        if self._failure is not None:
            raise self._failure
        for beside, name in zip(self._beside, self._names, strict=True):
            os.replace(self._folder / beside, self._folder / name)
        if not self._alone:
            self._write_index(files)
        sync_folder(self._folder)

    def clear(self) -> None:
        """Remove files that were not renamed, for example because a rank failed."""
        for beside in self._beside:
            with suppress(OSError):
                (self._folder / beside).unlink()

    def _write_index(self, files: Sequence[Sequence[Tensor]]) -> None:
        index = self._folder / _INDEX
        if len(files) == 1:
            index.unlink(missing_ok=True)  # of earlier files
            return
        places = {
            one.keys[0]: name for name, part in zip(self._names, files, strict=True) for one in part
        }
        total = sum(_bytes_of(one) for part in files for one in part)
        beside = self._folder / f".{_INDEX}.{secrets.token_hex(4)}"
        text = json.dumps({"metadata": {"total_size": total}, "weight_map": places}, indent=2)
        write_text(beside, text + "\n")
        os.replace(beside, index)
        (self._folder / f"model{_ENDING}").unlink(missing_ok=True)


# ---------------------------------------------------------------- reading


def _slices(source: Path, opened: ExitStack) -> dict[str, Any]:
    """Return sliceable tensors by name; raise CheckpointError if a file cannot be read."""
    open_file = _library("safetensors").safe_open
    found: dict[str, Any] = {}
    for path, wanted in _files(source).items():
        try:
            file = opened.enter_context(open_file(path, framework="pt"))
        except Exception as error:  # the library has its own exceptions
            raise CheckpointError(f"{path} can't be read: {error}") from None
        there = set(file.keys())
        lacking = sorted(set(wanted or ()) - there)
        if lacking:
            raise CheckpointError(f"{path} lacks {', '.join(lacking)}, which the index says it has")
        found |= {name: file.get_slice(name) for name in wanted or there}
    return found


def _files(source: Path) -> dict[Path, list[str] | None]:
    """Return the files, and the tensors to read from each; None: all."""
    if not source.is_dir():
        return {source: None}
    alone, index = source / f"model{_ENDING}", source / _INDEX
    if alone.exists():
        return {alone: None}
    try:
        places = json.loads(index.read_text())["weight_map"]
        files: dict[Path, list[str]] = {}
        for name, file in places.items():
            if file != Path(file).name:
                raise ValueError(f"it names {file!r}, which is not beside it")
            files.setdefault(source / file, []).append(name)
    except FileNotFoundError:
        raise CheckpointError(f"{source} has neither {alone.name} nor {_INDEX}") from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{index} is damaged: {error}") from None
    return dict(files)


def _read(stored: Any, box: Box) -> torch.Tensor:
    part: torch.Tensor = stored[
        tuple(slice(begin, end) for begin, end in zip(box.offsets, box.ends, strict=True)) or ...
    ]
    return part
