"""Reads metadata of torch.distributed.checkpoint without running code from the file.

The file `.metadata` is a pickle. Only the classes that describe tensors are allowed, so that a
malicious checkpoint cannot run code in the process that loads it.
"""

from __future__ import annotations

import io
import pickle
from enum import Enum
from pathlib import Path
from types import FunctionType
from typing import Any, ClassVar

import torch
from torch.distributed.checkpoint.metadata import Metadata

from horoscale.torch.parallel.checkpoint.errors import CheckpointError
from horoscale.torch.parallel.checkpoint.folders import METADATA

_OF_METADATA = {
    "BytesStorageMetadata",
    "ChunkStorageMetadata",
    "Metadata",
    "MetadataIndex",
    "StorageMeta",
    "TensorProperties",
    "TensorStorageMetadata",
    "_MEM_FORMAT_ENCODING",
}
_ALLOWED = {
    "torch.distributed.checkpoint.metadata": _OF_METADATA,
    "torch.distributed.checkpoint.filesystem": {"_StorageInfo"},
    "torch": {"Size"},
    "torch.serialization": {"_get_layout"},
    "collections": {"OrderedDict"},
    "pathlib": {"Path", "PosixPath", "PurePosixPath"},
    "pathlib._local": {"PosixPath"},
}

_BUILD: Any = pickle._Unpickler.dispatch[pickle.BUILD[0]]


class _Unpickler(pickle._Unpickler):
    """Python's implementation of Unpickler: C's allows restrictions of names only."""

    dispatch: ClassVar[dict[int, Any]] = dict(pickle._Unpickler.dispatch)
    stack: list[Any]

    def find_class(self, module: str, name: str) -> Any:
        """Return the object with this name; raise an error unless it describes a checkpoint."""
        if name in _ALLOWED.get(module, ()):
            return super().find_class(module, name)
        if module == "torch" and isinstance(getattr(torch, name, None), torch.dtype):
            return getattr(torch, name)
        raise pickle.UnpicklingError(f"it names {module}.{name}, which no metadata needs")

    def load_build(self) -> None:
        """Set attributes of an instance created by the pickle, but not of a class or function."""
        one = self.stack[-2]
        if isinstance(one, type | FunctionType | Enum):
            raise pickle.UnpicklingError(f"it changes {one!r}, which is not its own")
        _BUILD(self)

    dispatch[pickle.BUILD[0]] = load_build


def read_metadata(folder: Path) -> Metadata:
    """Return the metadata of a checkpoint; raise CheckpointError if it is missing or damaged."""
    path = folder / METADATA
    try:
        content = path.read_bytes()
    except OSError as error:
        raise CheckpointError(f"{folder} is no checkpoint: {error}") from None
    try:
        metadata = _Unpickler(io.BytesIO(content)).load()
    except Exception as error:  # pickle documents no exception types
        raise CheckpointError(f"{path} is damaged, or no metadata: {error}") from None
    if not isinstance(metadata, Metadata) or not isinstance(metadata.storage_data, dict):
        raise CheckpointError(f"{path} is damaged, or no metadata of torch.distributed.checkpoint")
    for info in metadata.storage_data.values():
        name = getattr(info, "relative_path", None)
        if not isinstance(name, str) or name != Path(name).name:
            raise CheckpointError(f"{path} names the file {name!r}, which is not beside it")
    return metadata
