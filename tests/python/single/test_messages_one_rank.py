"""Messages of one rank to itself, and pending ones at the end of the job."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np
import pytest

import horoscale.numpy as hvd
from horoscale._core import DataType, address_of
from horoscale.common.messages import Channel, Place, receiving, sending


@pytest.fixture(autouse=True)
def job() -> Iterator[None]:
    hvd.init()
    yield
    hvd.shutdown()


def test_a_pending_receive_ends_with_the_job() -> None:
    into = np.zeros(3)
    handles = [hvd.recv_async(into, 0, 1), hvd.recv_any_async(into, 2)]
    sent = hvd.send_async(np.zeros(100_000), 0, 3)  # too large to be sent without its receive
    hvd.shutdown()
    for handle in (*handles, sent):
        assert hvd.poll(handle)
        with pytest.raises(hvd.HorovodInternalError, match="shut"):
            hvd.synchronize(handle)
    hvd.init()
    hvd.send(np.full(3, 7.0), 0, 1)
    assert (into == 0).all()
    assert (hvd.recv(np.zeros(3), 0, 1) == 7).all()


@pytest.mark.parametrize("elements", [3, 100_000])
def test_a_mismatch_of_a_receive_of_any_rank(elements: int) -> None:
    sent = hvd.send_async(np.zeros(elements, np.float32), 0, 5)
    with pytest.raises(hvd.MismatchError, match="recv from any rank, tag 5 on process set 0"):
        hvd.recv_any(np.zeros(elements), 5)
    if elements > 10_000:
        with pytest.raises(hvd.MismatchError, match=f"{elements} elements of float64"):
            hvd.synchronize(sent)
    sent = hvd.send_async(np.ones(elements), 0, 5)
    into = np.zeros(elements)
    assert hvd.recv_any(into, 5) == 0
    assert (into == 1).all()
    hvd.synchronize(sent)


@pytest.mark.parametrize("values", [np.zeros(3, np.float32), np.zeros(4)], ids=["type", "number"])
def test_a_batch_waits_for_all_where_one_fails(values: np.ndarray) -> None:
    into = np.zeros(50_000)
    with pytest.raises(hvd.MismatchError, match="tag 1"):
        hvd.batch(
            [
                hvd.P2POp(hvd.recv, np.zeros(3), 0, 1),
                hvd.P2POp(hvd.send, values, 0, 1),
                hvd.P2POp(hvd.recv, into, 0, 2),
                hvd.P2POp(hvd.send, np.ones(50_000), 0, 2),
            ]
        )
    assert (into == 1).all()


@pytest.mark.parametrize(
    ("channel", "text"),
    [
        (Channel.TENSORS, ""),
        (Channel.GRADIENTS, " (a gradient)"),
        (Channel.OBJECT_HEADERS, " (an object)"),
        (Channel.OBJECTS, " (an object)"),
        (Channel.GROUPS, " (of torch.distributed)"),
        (Channel.GROUP_BARRIERS, " (of monitored_barrier)"),
    ],
)
def test_errors_tell_what_kind_of_message_it_is(channel: Channel, text: str) -> None:
    array = np.zeros(3)
    sent = Place(address_of(array), DataType.FLOAT64, 3, array)
    sending(sent, 0, 1, hvd.global_process_set, channel).start().wait()
    expected = re.escape(f"recv from rank 0, tag 1{text} on process set 0")
    with pytest.raises(hvd.MismatchError, match=expected):
        receiving(sent._replace(elements=2), 0, 1, hvd.global_process_set, channel).run()
