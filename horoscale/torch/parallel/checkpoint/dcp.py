"""Reads and writes files in the format of torch.distributed.checkpoint, with its reader and writer.

Each rank writes one file of tensors and values; the first rank also writes `.metadata`. No process
group is needed.
"""

from __future__ import annotations

import copy
import io
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.default_planner import (
    DefaultLoadPlanner,
    DefaultSavePlanner,
    create_default_global_save_plan,
)
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import (
    LoadItemType,
    LoadPlan,
    ReadItem,
    SavePlan,
    TensorWriteData,
    WriteItem,
    WriteItemType,
)
from torch.distributed.checkpoint.planner_helpers import create_read_items_for_chunk_list
from torch.distributed.checkpoint.storage import WriteResult

from horoscale.torch.parallel.checkpoint import checksums
from horoscale.torch.parallel.checkpoint.checksums import Sums
from horoscale.torch.parallel.checkpoint.errors import CheckpointError
from horoscale.torch.parallel.checkpoint.layout import Box, Extents, Piece
from horoscale.torch.parallel.checkpoint.sharing import Tensor, Work
from horoscale.torch.parallel.offload.direct import bytes_of

# Tensors by key and offset of their part; serialized values by key.
Data = Mapping["tuple[str, Extents]", torch.Tensor]
Values = Mapping[str, bytes]


class _SavePlanner(DefaultSavePlanner):
    """Provides the data of the writer's items."""

    def __init__(self, data: Data, values: Values) -> None:
        super().__init__()
        self._data = data
        self._values = values

    def resolve_data(self, write_item: WriteItem) -> torch.Tensor | io.BytesIO:
        index = write_item.index
        if write_item.type == WriteItemType.BYTE_IO:
            return io.BytesIO(self._values[index.fqn])
        assert index.offset is not None
        values = self._data[index.fqn, tuple(index.offset)]
        if values.is_cpu and values.is_contiguous():
            return _alone(values)  # the buffer outlives the writer
        return values.cpu().contiguous()


class _LoadPlanner(DefaultLoadPlanner):
    """Receives the data of the reader's items."""

    def __init__(self, pieces: Mapping[str, Sequence[Piece]]) -> None:
        super().__init__()
        self._pieces = pieces
        self.values: dict[str, Any] = {}

    def load_bytes(self, read_item: ReadItem, value: io.BytesIO) -> None:
        self.values[read_item.dest_index.fqn] = torch.load(
            value, map_location="cpu", weights_only=True
        )

    def resolve_tensor(self, read_item: ReadItem) -> torch.Tensor:
        number = read_item.dest_index.index
        assert number is not None
        tensor = self._pieces[read_item.dest_index.fqn][number].tensor
        return Box(tuple(read_item.dest_offsets), tuple(read_item.lengths)).of(tensor)

    def commit_tensor(self, read_item: ReadItem, tensor: torch.Tensor) -> None:
        """Do nothing: the reader has already copied into the tensor from resolve_tensor()."""


def write(
    folder: Path, rank: int, data: Data, values: Values, work: Work
) -> tuple[list[WriteResult], Sums]:
    """Write this rank's file and sync it to disk.

    Returns the location of the data, and the checksums.

    Raises OSError if the file cannot be written.
    """
    if not folder.is_dir():
        raise CheckpointError(
            f"rank {rank} does not see {folder}, which rank 0 made: all hosts need the same files"
        )
    items = [_tensor_item(work.tensors[key], key, box) for key, box in _own_boxes(work, rank)]
    items += [WriteItem(MetadataIndex(key), WriteItemType.BYTE_IO) for key in values]
    if not items:
        return [], {}
    writer = FileSystemWriter(folder)
    # The writer numbers the plans by rank, and names the files by these numbers.
    plans = writer.prepare_global_plan([SavePlan([])] * rank + [SavePlan(items)])
    results = writer.write_data(plans[rank], _SavePlanner(data, values)).wait()
    return results, checksums.compute(folder, [_place_of(one.storage_data) for one in results])


def finish(
    folder: Path,
    work: Work,
    results: Sequence[WriteResult],
    sums: Sums,
    same: Mapping[str, str],
) -> None:
    """Write the metadata and checksums of all ranks' files and sync them to disk.

    `same` maps keys of values to the key under which the same bytes were written.
    """
    checksums.write(folder, sums)
    tensors = {key: tensor for tensor in work.tensors.values() for key in tensor.keys}
    keys = [key for keys, _ in work.values.values() for key in keys]
    items = [
        _tensor_item(tensor, key, tile.box)
        for key, tensor in tensors.items()
        for tile in tensor.tiles
    ]
    items += [WriteItem(MetadataIndex(key), WriteItemType.BYTE_IO) for key in keys]
    _, metadata = create_default_global_save_plan([SavePlan(items)])
    for key, tensor in tensors.items():
        # Empty tensors have no tiles.
        metadata.state_dict_metadata.setdefault(
            key,
            TensorStorageMetadata(
                TensorProperties(dtype=tensor.dtype), torch.Size(tensor.shape), []
            ),
        )
    metadata.planner_data = {key: _path_of(key) for key in (*tensors, *keys)}
    written = {one.index: one for one in results}
    every = []
    for key, tensor in tensors.items():
        for tile in tensor.tiles:
            at = torch.Size(tile.box.offsets)
            one = written[MetadataIndex(tensor.keys[0], at)]
            every.append(replace(one, index=MetadataIndex(key, at)))
    for of, _ in work.values.values():
        one = written[MetadataIndex(same.get(of[0], of[0]))]
        every += [replace(one, index=MetadataIndex(key)) for key in of]
    FileSystemWriter(folder).finish(metadata, [every])


class Reader:
    """Reads a checkpoint with known metadata."""

    def __init__(self, folder: Path, metadata: Metadata) -> None:
        """Read from `folder`."""
        self._folder = folder
        self._metadata = metadata
        self._reader = FileSystemReader(folder)
        self._reader.set_up_storage_reader(metadata, is_coordinator=True)
        self._sums = checksums.read(folder)

    @property
    def keys(self) -> list[str]:
        """All keys."""
        return list(self._metadata.state_dict_metadata)

    def tensor(self, key: str) -> tuple[Extents, torch.dtype] | None:
        """Return the shape and dtype of a tensor; None if it is missing or not a tensor."""
        found = self._metadata.state_dict_metadata.get(key)
        if not isinstance(found, TensorStorageMetadata):
            return None
        return tuple(found.size), found.properties.dtype

    def read(self, pieces: Mapping[str, Sequence[Piece]], values: Sequence[str]) -> dict[str, Any]:
        """Fill pieces of tensors from the checkpoint, and return other values.

        Only the parts of files that the pieces need are read.

        Raises:
            CheckpointError: as in check(), or a file is damaged.
        """
        by_file = self.check(pieces, values)
        planner = _LoadPlanner(pieces)
        for name, items in by_file.items():
            self._verify(items)
            try:
                self._reader.read_data(LoadPlan(items), planner)
            except Exception as error:  # torch.load documents no exception types
                keys = sorted({item.storage_index.fqn for item in items})
                raise CheckpointError(
                    f"{self._folder / name} is damaged; it has {', '.join(keys[:3])}: "
                    f"{type(error).__name__}: {error}"
                ) from error
        same = self._same_bytes(values)
        # Return separate objects, so that a change of one list does not affect an equal one.
        return {
            key: planner.values[read] if key == read else copy.deepcopy(planner.values[read])
            for key, read in same.items()
        }

    def check(
        self, pieces: Mapping[str, Sequence[Piece]], values: Sequence[str]
    ) -> dict[str, list[ReadItem]]:
        """Return the parts of files to read, by file.

        Raises CheckpointError if a file is missing or truncated, or a part of a tensor is in no
        file.
        """
        for key, parts in pieces.items():
            self._check_covered(key, parts)
        by_file: dict[str, list[ReadItem]] = {}
        for item in self._items(pieces, sorted(set(self._same_bytes(values).values()))):
            info = self._metadata.storage_data.get(item.storage_index)
            if info is None:
                raise CheckpointError(f"{self._folder} lacks a part of {item.storage_index.fqn}")
            by_file.setdefault(info.relative_path, []).append(item)
        for name, items in by_file.items():
            self._check_length(name, items)
        return by_file

    def bytes_of(self, pieces: Mapping[str, Sequence[Piece]]) -> int:
        """Return the number of bytes to read from files for these pieces."""
        infos = self._metadata.storage_data
        return sum(infos[item.storage_index].length for item in self._items(pieces, ()))

    def _items(
        self, pieces: Mapping[str, Sequence[Piece]], values: Sequence[str]
    ) -> list[ReadItem]:
        items = []
        for key, parts in pieces.items():
            found = self._metadata.state_dict_metadata[key]
            assert isinstance(found, TensorStorageMetadata)  # tensor() has checked it
            chunks = [_chunk(part.box) for part in parts]
            items += create_read_items_for_chunk_list(key, found, chunks)
        nothing = torch.Size([0])
        for key in values:
            index = MetadataIndex(key)
            items.append(ReadItem(LoadItemType.BYTE_IO, index, nothing, index, nothing, nothing))
        return items

    def _same_bytes(self, values: Sequence[str]) -> dict[str, str]:
        """Map each key of a value to the key that is read for all values with the same bytes."""
        first: dict[tuple[str, int], str] = {}
        same = {}
        for key in values:
            info = self._metadata.storage_data.get(MetadataIndex(key))
            place = (key, -1) if info is None else (info.relative_path, info.offset)
            same[key] = first.setdefault(place, key)
        return same

    def _check_covered(self, key: str, parts: Sequence[Piece]) -> None:
        found = self._metadata.state_dict_metadata[key]
        assert isinstance(found, TensorStorageMetadata)
        chunks = [Box(tuple(one.offsets), tuple(one.sizes)) for one in found.chunks]
        for part in parts:
            rest = [part.box] if part.box.numel else []
            for chunk in chunks:
                rest = [left for one in rest for left in one.without(chunk)]
                if not rest:
                    break
            if rest:
                raise CheckpointError(
                    f"{self._folder} lacks {sum(one.numel for one in rest)} elements of {key} "
                    f"{list(found.size)}: the first ones are {list(rest[0].sizes)} at "
                    f"{list(rest[0].offsets)}"
                )

    def _verify(self, items: Sequence[ReadItem]) -> None:
        if self._sums is None:
            return
        parts = {}
        for item in items:
            index = item.storage_index
            where = "" if index.offset is None else f" at {list(index.offset)}"
            parts[_place_of(self._metadata.storage_data[index])] = f"{index.fqn}{where}"
        checksums.verify(self._folder, self._sums, parts)

    def _check_length(self, name: str, items: Sequence[ReadItem]) -> None:
        path = self._folder / name
        infos = [self._metadata.storage_data[item.storage_index] for item in items]
        needed = max(info.offset + info.length for info in infos)
        keys = ", ".join(sorted({item.storage_index.fqn for item in items})[:3])
        try:
            length = path.stat().st_size
        except OSError as error:
            raise CheckpointError(f"{path} is missing, which has {keys}: {error}") from None
        if length < needed:
            raise CheckpointError(
                f"{path} is truncated: it has {length} bytes, and {keys} need {needed}"
            )


def serialized(value: Any) -> bytes:
    """Return a value as serialized in this format."""
    stream = io.BytesIO()
    torch.save(value, stream)
    return stream.getvalue()


def _alone(values: torch.Tensor) -> torch.Tensor:
    """Return a tensor that shares the memory, with a storage of exactly this size.

    The values must outlive it. The writer copies a tensor that is a part of a larger storage, and
    keeps all copies until it is done.
    """
    if values.numel() == 0:
        return values
    return torch.frombuffer(bytes_of(values), dtype=values.dtype).view(values.shape)


def _own_boxes(work: Work, rank: int) -> list[tuple[str, Box]]:
    return [
        (key, tile.box)
        for key, tensor in work.tensors.items()
        for tile in tensor.tiles
        if tile.rank == rank
    ]


def _tensor_item(tensor: Tensor, key: str, box: Box) -> WriteItem:
    return WriteItem(
        MetadataIndex(key, box.offsets),
        WriteItemType.SHARD,
        tensor_data=TensorWriteData(
            _chunk(box), TensorProperties(dtype=tensor.dtype), torch.Size(tensor.shape)
        ),
    )


def _chunk(box: Box) -> ChunkStorageMetadata:
    return ChunkStorageMetadata(torch.Size(box.offsets), torch.Size(box.sizes))


def _place_of(info: Any) -> tuple[str, int, int]:
    return info.relative_path, info.offset, info.length


def _path_of(key: str) -> tuple[str, ...]:
    """Return the path of a value in nested dictionaries, as torch flattens them."""
    first, dot, rest = key.partition(".")
    return (first, rest) if dot else (first,)
