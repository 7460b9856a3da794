"""The agreement of the ranks at each commit, in one small allreduce."""

from __future__ import annotations

from array import array

from horoscale._core import DataType, OpKind, ReduceOp, TensorArg, address_of
from horoscale.common.exceptions import MismatchError
from horoscale.common.job import current_runtime

_NAME = "elastic.commit"


def agree(interruption: int, number: int, due: bool = False) -> tuple[int, bool]:
    """Return the largest interruption number of any rank when all ranks are at this commit.

    Also returns whether any rank requests that this commit be written to disk.

    Raises MismatchError if ranks are at different commits, HorovodInternalError if a rank failed.
    """
    said = array("q", [interruption, number, -number, due])
    address = address_of(said)
    current_runtime().enqueue(
        OpKind.ALLREDUCE,
        tensors=[TensorArg(address, address, DataType.INT64, (len(said),))],
        name=_NAME,
        reduce_op=ReduceOp.MAX,
        will_wait=True,
        keep_alive=said,
    ).wait()
    agreed, highest, minus_lowest, any_due = said
    if highest != -minus_lowest:
        raise MismatchError(
            f"ranks call commit() or check_host_updates() out of step: one is at commit "
            f"{-minus_lowest}, another at {highest}, this one at {number}. All ranks must call "
            "them equally often: commit after the same number of batches"
        )
    return agreed, bool(any_due)
