"""Agreement: compares once what all ranks of a pipeline must specify alike."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, NamedTuple

from horoscale._core import MismatchError
from horoscale.common.job import current_runtime
from horoscale.common.objects import allgather_object
from horoscale.torch.parallel.mesh import Axis
from horoscale.torch.parallel.tags import PIPELINES

_TAGS_EACH = 2**20

_made: Counter[int] = Counter()  # number of pipelines by id of their process set


class Agreed(NamedTuple):
    """What the ranks know about each other afterwards."""

    first_tag: int  # the first tag that the pipeline may use
    hosts: tuple[int, ...]  # host of each position on the axis


def agree(axis: Axis, said: Mapping[str, Any]) -> Agreed:
    """Compare the ranks' descriptions of a pipeline; return what they agree on.

    Collective over the axis. A value of None is not compared.

    Raises:
        MismatchError: on all ranks; it names what differs, and the ranks.
    """
    if axis.set is None:
        return Agreed(PIPELINES.start, (0,))
    identity = axis.set.process_set_id
    assert identity is not None
    host = current_runtime().topology.cross_rank
    answers = allgather_object((dict(said), _made[identity], host), "horoscale.pipeline", axis.set)
    # The maximum, because ranks that joined an elastic job later have created fewer pipelines.
    number = max(int(made) for _, made, _ in answers)
    _made[identity] = number + 1
    differing = [key for key in said if _differs([given.get(key) for given, _, _ in answers])]
    if differing:
        each = (
            f"rank {rank}: {', '.join(f'{key}={given.get(key)!r}' for key in differing)}"
            for rank, (given, _, _) in zip(axis.ranks, answers, strict=True)
        )
        raise MismatchError(f"the ranks of a pipeline contradict each other: {'; '.join(each)}")
    hosts = tuple(int(host) for _, _, host in answers)
    return Agreed(PIPELINES[number * _TAGS_EACH], hosts)


def _differs(values: list[Any]) -> bool:
    return len({repr(one) for one in values if one is not None}) > 1
