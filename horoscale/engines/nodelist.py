"""Parses Slurm's compressed lists of names and numbers."""

from __future__ import annotations

import itertools
import re

MAX_NODES = 1 << 20
_NAME = re.compile(r"(?:[^,\[\]]+|\[[^\[\]]*\])+")
_PART = re.compile(r"([^\[\]]+)|\[([^\[\]]*)\]")
_RANGE = re.compile(r"([0-9]+)(?:-([0-9]+))?")
_COUNT = re.compile(r"([0-9]+)(?:\(x([0-9]+)\))?")


def expand_nodes(text: str) -> list[str]:
    """Return the names in a node list such as ``gpu[01-03,7],login``, in order.

    Raises ValueError for an invalid list.
    """
    names: list[str] = []
    position = 0
    while position < len(text):
        match = _NAME.match(text, position)
        if match is None:
            raise ValueError(f"{text!r} is not a list of nodes")
        parts = [
            [plain] if plain else list(_numbers(numbers, text))
            for plain, numbers in _PART.findall(match[0])
        ]
        names += map("".join, itertools.islice(itertools.product(*parts), MAX_NODES + 1))
        if len(names) > MAX_NODES:
            raise ValueError(f"more than {MAX_NODES} nodes in {text[:80]!r}")
        position = match.end()
        if position < len(text) and text[position] != ",":
            raise ValueError(f"{text!r} is not a list of nodes")
        position += 1
    return names


def expand_counts(text: str) -> list[int]:
    """Return the numbers in a list of counts such as ``4(x2),3``: 4, 4, 3.

    Raises ValueError for an invalid list.
    """
    counts: list[int] = []
    for part in text.split(","):
        match = _COUNT.fullmatch(part)
        if match is None or int(match[2] or 1) > MAX_NODES:
            raise ValueError(f"{text!r} are not numbers by node")
        counts += [int(match[1])] * int(match[2] or 1)
    return counts


def _numbers(text: str, whole: str) -> list[str]:
    """Return the numbers in brackets, with leading zeros kept."""
    numbers: list[str] = []
    for part in text.split(","):
        match = _RANGE.fullmatch(part)
        if match is None:
            raise ValueError(f"{whole!r} is not a list of nodes: {part!r}")
        first, last = match[1], match[2] or match[1]
        if int(last) - int(first) >= MAX_NODES:
            raise ValueError(f"more than {MAX_NODES} nodes in {whole[:80]!r}")
        numbers += [str(one).zfill(len(first)) for one in range(int(first), int(last) + 1)]
    return numbers
