"""NamedGroup: the properties of a group that torch.distributed queries."""

# ProcessGroup's stubs have an overload for each of its callers; one method serves them here.
# mypy: disable-error-code="override, assignment"

from __future__ import annotations

from collections.abc import Sequence

from torch.distributed import ProcessGroup

NAME = "horoscale"


class NamedGroup(ProcessGroup):
    """A process group of this backend that only knows its ranks and its name."""

    def __init__(self, members: Sequence[int], own: int) -> None:
        """Store the global ranks in the group's order, and this process' index among them."""
        self._members = list(members)
        self._rank = self._members.index(own)
        super().__init__(self._rank, len(self._members))  # type: ignore[call-arg]
        self._group_name = self._group_desc = ""

    def getBackendName(self) -> str:  # noqa: N802
        """Return "horoscale"."""
        return NAME

    def name(self) -> str:
        """Return "horoscale"."""
        return NAME

    def rank(self) -> int:
        """Return this process' rank in the group."""
        return self._rank

    def size(self) -> int:
        """Return the number of ranks in the group."""
        return len(self._members)

    def getRank(self) -> int:  # noqa: N802
        """Return this process' rank in the group."""
        return self._rank

    def getSize(self) -> int:  # noqa: N802
        """Return the number of ranks in the group."""
        return len(self._members)

    @property
    def group_name(self) -> str:
        """The name of the group in torch.distributed."""
        return self._group_name

    @property
    def group_desc(self) -> str:
        """The description that was passed to new_group()."""
        return self._group_desc

    def getGroupName(self) -> str:  # noqa: N802
        """Return the group's name."""
        return self._group_name

    def getGroupDesc(self) -> str:  # noqa: N802
        """Return the group's description."""
        return self._group_desc

    def setGroupName(self, name: str) -> None:  # noqa: N802
        """Set the group's name."""
        self._group_name = name

    def setGroupDesc(self, description: str) -> None:  # noqa: N802
        """Set the group's description."""
        self._group_desc = description

    _set_group_name = setGroupName
    _set_group_desc = setGroupDesc

    def _get_backend_name(self) -> str:
        return NAME
