"""monitored_barrier(): a barrier that reports which ranks are missing."""

from __future__ import annotations

import itertools
import time
from array import array
from collections import defaultdict
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Any

from torch.distributed import ProcessGroup, distributed_c10d

from horoscale import _core
from horoscale._core import DataType, MessageArg, address_of
from horoscale.common import job
from horoscale.common.job import current_runtime
from horoscale.common.messages import Channel
from horoscale.common.process_sets import at_removal
from horoscale.torch.distributed.errors import GroupTimeoutError

_BARRIERS_OF_A_GROUP = 1 << 32
_first_of_next_group: defaultdict[int, Iterator[int]] = defaultdict(
    lambda: itertools.count(0, _BARRIERS_OF_A_GROUP)
)
job.at_end(_first_of_next_group.clear)


def _forget(set_id: int) -> None:
    _first_of_next_group.pop(set_id, None)


at_removal(_forget)


def numbers_of_group(set_id: int) -> Iterator[int]:
    """Return the barrier numbers of a new group, which differ from those of all earlier groups.

    Several groups may successively use one process set: all default groups of a job use the global
    one. Messages of a barrier that timed out may still be pending there.
    """
    return itertools.count(next(_first_of_next_group[set_id]))


def monitored_barrier(
    group: ProcessGroup | None = None,
    timeout: timedelta | float | None = None,
    wait_all_ranks: bool = False,
) -> None:
    """Wait for all ranks of a group of this backend. Raise an error that names missing ranks.

    Once a group of this backend exists, dist.monitored_barrier() calls this function, too. The
    first rank of the group detects which ranks are missing; the others learn that it has not
    answered. Errors name ranks in the group, in Gloo's wording.

    Args:
        group: the group. None: the default group.
        timeout: how long to wait, as a timedelta or in seconds. None: the group's timeout.
        wait_all_ranks: report all missing ranks, rather than the first one.

    Raises:
        GroupTimeoutError: ranks did not arrive in time.
        RankFailedError: a rank of the group died or left.
    """
    chosen: Any = group or distributed_c10d._get_default_group()
    chosen.monitored_barrier(timeout, wait_all_ranks=wait_all_ranks)


def meet(
    set_id: int,
    members: Sequence[int],
    rank: int,
    number: int,
    seconds: float,
    wait_all_ranks: bool,
) -> None:
    """Run the group's barrier with this number. The first rank waits for each of the others."""
    deadline = time.monotonic() + seconds
    if rank != 0:
        _message(set_id, members[0], number, True)
        try:
            _message(set_id, members[0], number, False).wait(seconds)
        except TimeoutError:
            raise GroupTimeoutError(
                f"Rank {rank} successfully reached monitoredBarrier, but received errors while "
                f"waiting for send/recv from rank 0: no answer within {seconds} s. Rank 0 has not "
                f"come, or says who else has not, of ranks {list(members)}"
            ) from None
        return
    came = [_message(set_id, peer, number, False) for peer in members[1:]]
    missing: list[int] = []
    for position, handle in enumerate(came, start=1):
        try:
            handle.wait(max(0.0, deadline - time.monotonic()))
        except TimeoutError:
            missing.append(position)
            if not wait_all_ranks:
                break
    if missing:
        who = f"Ranks {', '.join(map(str, missing))}" if wait_all_ranks else f"Rank {missing[0]}"
        raise GroupTimeoutError(
            f"{who} failed to pass monitoredBarrier in {seconds} s, of ranks {list(members)}"
            + ("" if wait_all_ranks else " (wait_all_ranks=True would name all that are missing)")
        )
    for peer in members[1:]:
        _message(set_id, peer, number, True)


def _message(set_id: int, peer: int, number: int, is_send: bool) -> _core.Handle:
    room = array("B", [0])
    message = MessageArg(
        peer, number, Channel.GROUP_BARRIERS, address_of(room), DataType.UINT8, 1, set_id
    )
    return current_runtime().start_message(message, is_send, False, room)
