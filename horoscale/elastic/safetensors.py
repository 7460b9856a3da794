"""Files in the public safetensors format: a JSON header, then the bytes of the tensors.

https://github.com/huggingface/safetensors describes the format. Element types that it lacks are
written as bytes ("U8"), and the reader must know the original type.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from horoscale.elastic.arrays import Spec
from horoscale.elastic.snapshot import Block

_MAX_HEADER_BYTES = 100 << 20  # the limit of the format
_PIECE_BYTES = 1 << 20
_NOT_THERE = {"C128"}


def write_tensors(
    path: Path, blocks: Mapping[str, Block], did: Callable[[int], None] = lambda nbytes: None
) -> tuple[int, str]:
    """Write a file and sync it to disk. Return its size and its BLAKE2b hash in hex.

    `did` is called with the number of bytes of each piece written.
    """
    digest = hashlib.blake2b(digest_size=32)
    size = 0
    with open(path, "wb") as file:
        for piece in _pieces(blocks):
            file.write(piece)
            digest.update(piece)
            size += len(piece)
            did(len(piece))
        file.flush()
        os.fsync(file.fileno())
    return size, digest.hexdigest()


def read_tensors(path: Path, specs: Mapping[str, Spec], size: int, digest: str) -> dict[str, Block]:
    """Return the blocks of a file from write_tensors(). Raises ValueError if it does not match."""
    content = np.fromfile(path, np.uint8)
    if content.size != size or hashlib.blake2b(content.data, digest_size=32).hexdigest() != digest:
        raise ValueError(f"{path} is damaged: size or hash differ from its manifest")
    length = int.from_bytes(content[:8].tobytes(), "little")
    if length > min(_MAX_HEADER_BYTES, content.size - 8):
        raise ValueError(f"{path} is not a safetensors file")
    header: dict[str, Any] = json.loads(content[8 : 8 + length].tobytes())
    data = content[8 + length :]
    blocks = {}
    for name, spec in specs.items():
        begin, end = header[name]["data_offsets"]
        if not 0 <= begin <= end <= data.size or end - begin != spec.nbytes:
            raise ValueError(f"{path}: tensor {name} does not match the manifest")
        blocks[name] = Block(spec, data[begin:end].copy())
    return blocks


def _pieces(blocks: Mapping[str, Block]) -> Iterator[Any]:
    header: dict[str, Any] = {}
    offset = 0
    for name, block in blocks.items():
        spec = block.spec
        unknown = spec.dtype in _NOT_THERE
        header[name] = {
            "dtype": "U8" if unknown else spec.dtype,
            "shape": [spec.nbytes] if unknown else list(spec.shape),
            "data_offsets": [offset, offset + spec.nbytes],
        }
        offset += spec.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    yield len(text).to_bytes(8, "little")
    yield text
    for block in blocks.values():
        data = block.data.data
        for begin in range(0, len(data), _PIECE_BYTES):
            yield data[begin : begin + _PIECE_BYTES]
