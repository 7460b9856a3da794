"""The exceptions that users handle, in the same module as in Horovod."""

from horoscale._core.errors import (
    DuplicateNameError,
    HorovodInternalError,
    MismatchError,
    RankFailedError,
    UnsupportedError,
)

__all__ = [
    "DuplicateNameError",
    "HorovodInternalError",
    "HostsUpdatedInterrupt",
    "MismatchError",
    "RankFailedError",
    "UnsupportedError",
]


class HostsUpdatedInterrupt(RuntimeError):  # noqa: N818 (Horovod's name)
    """The set of hosts has changed. An elastic job restarts from its last commit."""

    def __init__(self, skip_sync: bool = False) -> None:
        """`skip_sync`: hosts were only removed, so the state need not be sent again."""
        super().__init__(skip_sync)
        self.skip_sync = skip_sync
