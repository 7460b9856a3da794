"""The exceptions that users handle, in the module where Horovod has them."""

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
    """The set of hosts has changed: an elastic job restarts from its last commit."""

    def __init__(self, skip_sync: bool = False) -> None:
        """`skip_sync`: hosts were only removed, so no state needs to be sent again."""
        super().__init__(skip_sync)
        self.skip_sync = skip_sync
