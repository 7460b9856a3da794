"""The ranks of a horoscale job, as Lightning asks for them."""

from __future__ import annotations

from lightning.fabric.plugins import ClusterEnvironment

import horoscale.common as hvd
from horoscale.common.foreign import is_launched


class HoroscaleEnvironment(ClusterEnvironment):  # type: ignore[misc]
    """Takes ranks and sizes from hvd.init(), which it calls: from whatever launcher that knows."""

    def __init__(self) -> None:
        """Join the job. Raises what hvd.init() raises."""
        hvd.init(process_sets="dynamic")

    @staticmethod
    def detect() -> bool:
        """Tell whether such a launcher has started this process."""
        return hvd.is_initialized() or is_launched()

    @property
    def creates_processes_externally(self) -> bool:
        """The launcher has made them."""
        return True

    @property
    def main_address(self) -> str:
        """Nobody needs it: the ranks have met."""
        return "127.0.0.1"

    @property
    def main_port(self) -> int:
        """Nobody needs it either."""
        return 0

    def world_size(self) -> int:
        """Return the number of ranks."""
        return hvd.size()

    def set_world_size(self, size: int) -> None:
        """Do nothing: the job has its size."""

    def global_rank(self) -> int:
        """Return this process' rank."""
        return hvd.rank()

    def set_global_rank(self, rank: int) -> None:
        """Do nothing: the process has its rank."""

    def local_rank(self) -> int:
        """Return the rank among those of this host."""
        return hvd.local_rank()

    def node_rank(self) -> int:
        """Return the host's number among the hosts."""
        return hvd.cross_rank()

    def validate_settings(self, num_devices: int, num_nodes: int) -> None:
        """Check what the program says against the job.

        Raises ValueError where devices= and num_nodes= are given and make another number of ranks.
        """
        if num_devices > 1 and num_devices * num_nodes != hvd.size():
            raise ValueError(
                f"devices={num_devices} and num_nodes={num_nodes} make {num_devices * num_nodes} "
                f"ranks, and the job has {hvd.size()}: leave both out, the launcher says how many"
            )


def environment_of_launcher() -> ClusterEnvironment | None:
    """Return the environment of who started this process; None: Lightning starts ranks."""
    return HoroscaleEnvironment() if HoroscaleEnvironment.detect() else None
