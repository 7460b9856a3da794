"""status(): how the ranks of the job are, asked by one of them."""

from __future__ import annotations

from typing import Any

from horoscale.elastic.membership import membership


def status() -> dict[str, Any]:
    """Return what `horoscalerun --status --json` shows, as values of JSON. Not collective.

    Each rank of an elastic job tells its launcher once a second, from hvd.elastic.run() on, how far
    it is, for how long it has computed and waited, and what its process sets wait for. `findings`
    names what does not advance, and stragglers; docs/elastic.md has the fields.

    In other jobs there is nobody to ask: `processes` has this rank alone, with the same fields,
    `view` is 0, and `findings` has nothing.

    Raises ValueError without hvd.init(), HorovodInternalError where the launcher does not answer.
    """
    return membership().status()
