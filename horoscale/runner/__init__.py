"""The launcher: starts, monitors and ends the ranks of a job.

`horoscalerun` (launch) plans a job and runs it (job) through one supervisor process per host
(supervisor), which starts the ranks. Importing this package imports none of that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from horoscale.runner.api import run

__all__ = ["run"]


def __getattr__(name: str) -> Any:
    # Imported lazily: the supervisor must start fast and needs little of this.
    if name == "run":
        from horoscale.runner.api import run

        return run
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
