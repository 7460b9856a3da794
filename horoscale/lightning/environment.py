"""Lightning's cluster environment for the ranks of a horoscale job."""

from __future__ import annotations

from lightning.fabric.plugins import ClusterEnvironment

import horoscale.common as hvd
from horoscale.common.foreign import is_launched


class HoroscaleEnvironment(ClusterEnvironment):  # type: ignore[misc]
    """Provides the ranks and sizes of hvd.init(), which it calls, for any supported launcher."""

    def __init__(self) -> None:
        """Join the job. Raises the exceptions of hvd.init()."""
        hvd.init(process_sets="dynamic")

    @staticmethod
    def detect() -> bool:
        """Return whether such a launcher has started this process."""
        return hvd.is_initialized() or is_launched()

    @property
    def creates_processes_externally(self) -> bool:
        """Whether the launcher has started the ranks: always true."""
        return True

    @property
    def main_address(self) -> str:
        """A placeholder, because the ranks are already connected."""
        return "127.0.0.1"

    @property
    def main_port(self) -> int:
        """A placeholder, because the ranks are already connected."""
        return 0

    def world_size(self) -> int:
        """Return the number of ranks."""
        return hvd.size()

    def set_world_size(self, size: int) -> None:
        """Do nothing: the job defines its size."""

    def global_rank(self) -> int:
        """Return this process' rank."""
        return hvd.rank()

    def set_global_rank(self, rank: int) -> None:
        """Do nothing: the job defines the rank."""

    def local_rank(self) -> int:
        """Return this process' rank on its host."""
        return hvd.local_rank()

    def node_rank(self) -> int:
        """Return the index of this host."""
        return hvd.cross_rank()

    def validate_settings(self, num_devices: int, num_nodes: int) -> None:
        """Check the program's settings against the job.

        Raises ValueError if devices= and num_nodes= are given and their product differs from the
        number of ranks.
        """
        if num_devices > 1 and num_devices * num_nodes != hvd.size():
            raise ValueError(
                f"devices={num_devices} and num_nodes={num_nodes} make {num_devices * num_nodes} "
                f"ranks, and the job has {hvd.size()}: leave both out, the launcher says how many"
            )


def environment_of_launcher() -> ClusterEnvironment | None:
    """Return the launcher's environment, or None if Lightning starts the ranks."""
    return HoroscaleEnvironment() if HoroscaleEnvironment.detect() else None
