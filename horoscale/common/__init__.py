"""The foundation of all bindings: the job, process sets, errors, objects, and argument rules.

Each rule is one function of horoscale.common.arguments, which every binding calls:

    resolve_op(op, average)     Average unless one of the two is given; both are an error; pass
                                allowed=SUMS to accept sums only, allowed=ELEMENTWISE to exclude
                                Adasum
    check_reduction(dtype, op)  no Average of bool, no Min and Max of complex numbers, bitwise
                                operators for integers and bool only
    set_id(process_set)         the id for Runtime.enqueue(); the set must be registered and
                                include this rank
    check_root(root, set)       a root is a global rank, even in a process set, and a member of it
    check_member(…, rank, set)  the same for the peer of a message
    check_splits(splits, …)     one per member, none negative, a sum of at most the rows
    check_all_split(splits, …)  the same for reducescatter, with a sum of exactly the rows
    check_even_split(rows, set) alltoall without splits needs rows that divide evenly
    check_has_rows(shape, …)    operations on rows do not accept a 0-d tensor
    scattered_rows(rows, …)     without splits, reducescatter gives the lower ranks one extra row

The core does the arithmetic: averages of integers, scale factors and accumulation. An error that a
rank can detect alone is raised immediately, before any data is sent. An error that is only detected
by comparing ranks (such as different shapes) raises MismatchError on every member.
"""

from horoscale.common import exports as _exports
from horoscale.common.basics import current_runtime
from horoscale.common.batches import P2POp
from horoscale.common.exports import *  # noqa: F403
from horoscale.common.object_messages import recv_object, send_object
from horoscale.common.objects import allgather_object, broadcast_object
from horoscale.common.synchronization import join

__all__ = [
    "P2POp",
    "allgather_object",
    "broadcast_object",
    "current_runtime",
    "join",
    "recv_object",
    "send_object",
]
__all__ += _exports.__all__
