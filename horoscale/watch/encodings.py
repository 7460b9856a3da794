"""How much the encodings of a job save, by process set, and what adaptive compression has chosen.

Totals never decrease, even if ranks leave the job. They are lower bounds: what a rank sends after
its last report is not counted. Memory is bounded, whatever ranks report.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from horoscale.runner.text import printable
from horoscale.watch.values import number

MOST_TOTALS = 256  # pairs of a process set and an encoding; further ones are counted together
OTHER = "other"
_MOST_SETS = 8  # in the report of a rank
_MOST_ENCODINGS = 8  # of a set, in the report of a rank
_MOST_CHOSEN = 64  # sets whose choices are kept
_MOST_CHARACTERS = 40  # of the name of an encoding
_MOST_DIGITS = 10  # of the ID of a set


class Encoded(NamedTuple):
    """Bytes that were sent in a lossy encoding, and the relative error."""

    bytes_before: float
    bytes_after: float
    relative_error: float


class EncodedTotal(NamedTuple):
    """The sum of all ranks' bytes, and the largest relative error reported last by any of them."""

    process_set: str  # its ID, or "other"
    encoding: str
    bytes_before: float
    bytes_after: float
    relative_error: float

    @property
    def ratio(self) -> float:
        """The factor by which the encoding reduced the bytes."""
        return self.bytes_before / self.bytes_after if self.bytes_after else 1.0


EncodedOfRank = Mapping[tuple[str, str], Encoded]  # by process set and encoding
ChosenOfRank = Mapping[str, Mapping[str, int]]  # by process set: number of tensors by encoding


class Encodings:
    """The encodings of a job, from the reports of its ranks."""

    def __init__(self) -> None:
        self._totals: dict[tuple[str, str], tuple[float, float]] = {}
        self._errors: dict[tuple[str, str], float] = {}  # reported last, by any rank
        self._chosen: dict[str, Mapping[str, int]] = {}  # by process set
        self._tellers: dict[str, int] = {}  # by process set: the process whose reports count

    def take(self, before: EncodedOfRank, now: EncodedOfRank) -> None:
        """Take two successive reports of a rank."""
        for key, used in now.items():
            last = before.get(key)
            if last is None or _restarted(last, used):
                last = Encoded(0.0, 0.0, 0.0)
            kept = self._key(key)
            sent, encoded = self._totals.get(kept, (0.0, 0.0))
            sent += used.bytes_before - last.bytes_before
            encoded += used.bytes_after - last.bytes_after
            self._totals[kept] = (sent, encoded)
            self._errors[kept] = used.relative_error

    def decided(self, process: int, chosen: ChosenOfRank) -> list[str]:
        """Take the choices that a process reports, and return a sentence for each change.

        All members of a set make the same choices, but report them at different times. Only the
        reports of one of them count, as long as it has any.
        """
        if self._tellers:
            self._tellers = {
                process_set: teller
                for process_set, teller in self._tellers.items()
                if teller != process or process_set in chosen
            }
        news = []
        for process_set, tensors in chosen.items():
            if len(self._tellers) < _MOST_CHOSEN:
                self._tellers.setdefault(process_set, process)
            if self._tellers.get(process_set) != process:
                continue
            if self._chosen.get(process_set) == tensors:
                continue
            if process_set not in self._chosen and len(self._chosen) >= _MOST_CHOSEN:
                self._chosen.pop(self._replaceable())
            self._chosen[process_set] = tensors
            counts = ", ".join(f"{name} {count}" for name, count in sorted(tensors.items()))
            news.append(
                f"adaptive compression in process set {process_set}, tensors by encoding: {counts}"
            )
        return news

    def _replaceable(self) -> str:
        """Return a set that no process reports any more, or else the oldest one."""
        unreported = (one for one in self._chosen if one not in self._tellers)
        return next(unreported, next(iter(self._chosen)))

    def totals(self, ranks: Iterable[EncodedOfRank]) -> list[EncodedTotal]:
        """Return the totals, given the last reports of the living ranks."""
        errors: dict[tuple[str, str], float] = {}
        for one in ranks:
            for key, used in one.items():
                kept = self._key(key)
                errors[kept] = max(errors.get(kept, 0.0), used.relative_error)
        return [
            EncodedTotal(*key, *sizes, errors.get(key, self._errors[key]))
            for key, sizes in sorted(self._totals.items())
        ]

    def _key(self, key: tuple[str, str]) -> tuple[str, str]:
        has_place = key in self._totals or len(self._totals) < MOST_TOTALS
        return key if has_place else (OTHER, OTHER)


def _restarted(last: Encoded, now: Encoded) -> bool:
    """Return whether a counter decreased: it belongs to a new runtime or process set."""
    return now.bytes_before < last.bytes_before or now.bytes_after < last.bytes_after


def chosen_tensors(ranks: Iterable[ChosenOfRank]) -> dict[tuple[str, str], int]:
    """Return the number of tensors by process set and chosen encoding."""
    known: dict[str, Mapping[str, int]] = {}
    for one in ranks:
        for process_set, tensors in one.items():
            if len(known) < _MOST_CHOSEN:
                known.setdefault(process_set, tensors)
    return {
        (process_set, name): count
        for process_set, tensors in sorted(known.items())
        for name, count in sorted(tensors.items())
    }


def by_encoding(totals: Iterable[EncodedTotal]) -> dict[str, dict[str, float]]:
    """Return the totals over all process sets by encoding, as JSON values."""
    told: dict[str, dict[str, float]] = {}
    for one in totals:
        whole = told.setdefault(one.encoding, dict.fromkeys(Encoded._fields, 0.0))
        whole["bytes_before"] += one.bytes_before
        whole["bytes_after"] += one.bytes_after
        whole["relative_error"] = max(whole["relative_error"], one.relative_error)
    return told


def encoded_of(given: object) -> EncodedOfRank:
    """Return the encodings in a rank's report, without malformed entries."""
    return {
        (process_set, name): Encoded(*map(number, values))
        for process_set, name, values in _of_sets(given)
        if isinstance(values, list) and len(values) == len(Encoded._fields)
    }


def chosen_of(given: object) -> ChosenOfRank:
    """Return the choices of adaptive compression in a rank's report, without malformed entries."""
    chosen: dict[str, dict[str, int]] = {}
    for process_set, name, count in _of_sets(given):
        if (tensors := int(number(count))) > 0:
            chosen.setdefault(process_set, {})[name] = tensors
    return chosen


def _of_sets(given: object) -> list[tuple[str, str, object]]:
    """Return the values of each process set and encoding."""
    sets = list(given.items())[:_MOST_SETS] if isinstance(given, dict) else []
    return [
        (process_set, printable(str(name)[:_MOST_CHARACTERS]), value)
        for process_set, encodings in sets
        if _is_number(process_set) and isinstance(encodings, dict)
        for name, value in list(encodings.items())[:_MOST_ENCODINGS]
    ]


def _is_number(text: object) -> bool:
    return (
        isinstance(text, str) and text.isascii() and text.isdecimal() and len(text) <= _MOST_DIGITS
    )
