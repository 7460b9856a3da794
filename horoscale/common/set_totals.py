"""SetTotals: counters of a job's process sets, summed over all of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# Names of the sums, and of the counters in hvd.metrics()["process_sets"][...].
_SUMMED = {
    "operations": "operations",
    "reduced_bytes": "bytes",
    "message_bytes": "message_bytes_sent",
}


class SetTotals:
    """Sums counters over the process sets of a job, including those that were removed."""

    def __init__(self) -> None:
        self._last: dict[str, dict[str, int]] = {}  # by process set
        self._removed = dict.fromkeys(_SUMMED, 0)

    def over(self, sets: Mapping[str, Mapping[str, Any]]) -> dict[str, int]:
        """Return the sums, given the counters of the existing sets by ID.

        Counters that decrease belong to a new set with the ID of a removed one.
        """
        now = {
            key: {name: one[counter] for name, counter in _SUMMED.items()}
            for key, one in sets.items()
        }
        for key, last in self._last.items():
            if key not in now or any(now[key][name] < last[name] for name in _SUMMED):
                for name in _SUMMED:
                    self._removed[name] += last[name]
        self._last = now
        return {
            name: self._removed[name] + sum(one[name] for one in now.values()) for name in _SUMMED
        }

    def reset(self) -> None:
        """Start with the next job, whose counters start at zero."""
        self._last = {}
        self._removed = dict.fromkeys(_SUMMED, 0)
