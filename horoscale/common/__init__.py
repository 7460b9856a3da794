"""What all bindings share: the job, process sets, errors, objects, and the rules for arguments.

The rules, each in one function of horoscale.common.arguments that every binding calls:

    resolve_op(op, average)     Average unless one of the two is given; both are an error; Adasum is
                                not there yet; what takes sums alone passes allowed=SUMS
    check_reduction(dtype, op)  no Average of bool, no Min and Max of complex numbers, bitwise
                                operators of integers and bool alone
    set_id(process_set)         the id for Runtime.enqueue(); the set must be registered, and this
                                rank in it
    check_root(root, set)       a root is a global rank, also inside a process set, and in the set
    check_member(…, rank, set)  so is the peer of a message
    check_splits(splits, …)     one for each member, none negative, in sum at most the rows
    check_all_split(splits, …)  the same for reducescatter, in sum exactly the rows
    check_even_split(rows, set) alltoall without splits deals out evenly or not at all
    check_has_rows(shape, …)    what deals with rows takes no 0-d tensor
    scattered_rows(rows, …)     reducescatter leaves the lower ranks one row more, without splits

The arithmetic is not theirs: average of integers, scale factors and accumulation are the core's.
What a rank can see to be wrong by itself raises at once and sends nothing; what takes the other
ranks to see (shapes that differ) raises MismatchError on every member.
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
