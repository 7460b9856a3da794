"""status(): the state of all ranks of the job, available on each of them."""

from __future__ import annotations

from typing import Any

from horoscale.elastic.membership import membership


def status() -> dict[str, Any]:
    """Return what `horoscalerun --status --json` shows, as JSON values. Not collective.

    After hvd.elastic.run() has been called, each rank of an elastic job reports to the launcher
    once a second: its progress, the time spent computing and waiting, and what its process sets
    wait for. `findings` lists ranks and sets without progress, and stragglers. docs/elastic.md
    describes the fields.

    A job that is not elastic has no such launcher. `processes` then contains only this rank, with
    the same fields; `view` is 0, and `findings` is empty.

    Raises ValueError before hvd.init(), HorovodInternalError if the launcher does not answer.
    """
    return membership().status()
