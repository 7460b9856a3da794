"""Snapshot: a tree of values at one time, with arrays as bytes to hash, send and write.

The tree contains only JSON values. A value of a plain type is stored unchanged, a container is
tagged, an array is replaced by the name of its block, and any other value is pickled:

    {"dict": [[key, value], ...]}  {"list": [...]}  {"tuple": [...]}
    {"array": [kind, name]}        {"pickle": base64}
"""

from __future__ import annotations

import base64
import hashlib
import pickle
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import cloudpickle
import numpy as np

from horoscale.elastic.arrays import Bytes, Spec, kind_named, kind_of

_PLAIN = (bool, int, float, str, type(None))
_SEQUENCES: dict[type, str] = {list: "list", tuple: "tuple"}
_MAPPINGS: dict[type, str] = {dict: "dict", OrderedDict: "ordered"}


@dataclass
class Block:
    """The bytes of one array."""

    spec: Spec
    data: Bytes

    @staticmethod
    def empty(spec: Spec) -> Block:
        """Return a block of undefined bytes."""
        return Block(spec, np.empty(spec.nbytes, np.uint8))

    def digest(self) -> bytes:
        """Return a hash of the bytes. Blocks with the same digest and spec are equal."""
        return hashlib.blake2b(self.data.data, digest_size=16).digest()


@dataclass
class Snapshot:
    """A tree, and its blocks by the path of each array: "model.0.weight"."""

    tree: Any = None
    blocks: dict[str, Block] = field(default_factory=dict)

    def take(self, value: Any) -> None:
        """Replace the content by `value`, reusing the memory of arrays with equal specs."""
        used: dict[str, Block] = {}

        def keep(array: Any, path: str) -> Any:
            kind = kind_of(array)
            assert kind is not None
            name = _unused(path or "value", used)
            spec = kind.spec(array)
            block = self.blocks.get(name)
            if block is None or block.spec != spec:
                block = Block.empty(spec)
            kind.read(array, block.data)
            used[name] = block
            return {"array": [kind.name, name]}

        self.tree = _encode(value, "", keep)
        self.blocks = used

    def value(self, *path: str) -> Any:
        """Return a new copy of the value, or of the part at a path of keys.

        Nothing in it shares memory with the snapshot.
        """

        def make(kind: str, name: str) -> Any:
            block = self.blocks[name]
            return kind_named(kind).make(block.spec, block.data)

        tree = self.tree
        for key in path:
            [pairs] = tree.values()
            tree = dict(map(tuple, pairs))[key]
        return _decode(tree, make)

    def shares(self, other: Snapshot) -> bool:
        """Return whether the snapshots share memory."""
        return any(other.blocks.get(name) is block for name, block in self.blocks.items())

    @property
    def nbytes(self) -> int:
        """The size of the arrays in bytes."""
        return sum(block.spec.nbytes for block in self.blocks.values())


def _encode(value: Any, path: str, keep: Callable[[Any, str], Any]) -> Any:
    kind = type(value)
    if kind in _PLAIN:
        return value
    if kind_of(value) is not None:
        return keep(value, path)
    if kind in _SEQUENCES:
        items = [_encode(one, _join(path, i), keep) for i, one in enumerate(value)]
        return {_SEQUENCES[kind]: items}
    if kind in _MAPPINGS and all(type(key) in _PLAIN for key in value):
        pairs = [[key, _encode(one, _join(path, key), keep)] for key, one in value.items()]
        return {_MAPPINGS[kind]: pairs}
    return {"pickle": base64.b64encode(cloudpickle.dumps(value)).decode()}


def _decode(tree: Any, make: Callable[[str, str], Any]) -> Any:
    if not isinstance(tree, dict):
        return tree
    [(tag, content)] = tree.items()
    if tag == "array":
        return make(*content)
    if tag == "pickle":
        return pickle.loads(base64.b64decode(content))
    if tag in _MAPPINGS.values():
        pairs = [(key, _decode(one, make)) for key, one in content]
        return dict(pairs) if tag == "dict" else OrderedDict(pairs)
    items = [_decode(one, make) for one in content]
    return tuple(items) if tag == "tuple" else items


def _join(path: str, key: object) -> str:
    return f"{path}.{key}" if path else str(key)


def _unused(name: str, used: dict[str, Block]) -> str:
    free, count = name, 1
    while free in used:
        count += 1
        free = f"{name}#{count}"
    return free
