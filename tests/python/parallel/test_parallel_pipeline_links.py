"""Counts the messages on a pipeline's links, and what ranks hold meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import nn

import horoscale.torch as hvd
import horoscale.torch.parallel as par
from horoscale.torch.parallel.pipeline import frames
from horoscale.torch.parallel.pipeline.schedule import make_schedule
from horoscale.torch.parallel.pipeline.simulate import peak_activations

SCHEDULES = ("gpipe", "1f1b", "zb-h1", "interleaved")
FEATURES = 4
mse = nn.functional.mse_loss


@pytest.fixture
def axis() -> par.Axis:
    ranks = tuple(range(hvd.size()))
    return par.Axis("pp", ranks, hvd.rank(), hvd.global_process_set if hvd.size() > 1 else None)


class Stage(nn.Module):
    """Autograd saves one tensor of it."""

    def __init__(self) -> None:
        super().__init__()
        self.shift = nn.Parameter(torch.ones(FEATURES))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x + self.shift)


def stages(number: int) -> list[nn.Module]:
    return [Stage() for _ in range(number)]


def received() -> int:
    """The number of received messages. Sends are counted later, when the receiver releases them."""
    return int(hvd.metrics()["process_sets"]["0"]["messages_received"])


def negotiated() -> list[int]:
    """The numbers of operations reported to a coordinator, and executed by its plan."""
    counters = hvd.metrics()["process_sets"]["0"]
    return [counters[name] for name in ("cache_hits", "cache_misses", "buckets", "one_hop")]


def test_one_message_for_each_hand_over(axis: par.Axis) -> None:
    """From the third step with a shape on, even if the last microbatch has another shape."""
    microbatches = 3
    pipe = par.Pipeline(stages(axis.size), axis, loss=mse, microbatches=microbatches)
    x = torch.ones(3 * microbatches - 1, FEATURES)
    of_each_step = []
    plans = []
    for _ in range(4):
        before = received()
        pipe.step(x, x)
        of_each_step.append(received() - before)
        plans.append(negotiated())
    least = microbatches * ((not pipe.is_last) + (not pipe.is_first))
    least += 0 if pipe.is_last else 1  # the loss
    # A new shape is announced in a message.
    assert of_each_step == [2 * least, 2 * least, least, least]
    assert plans == 4 * plans[:1]  # only the first step negotiates


def test_slots_of_an_evaluation_serve_a_step(axis: par.Axis) -> None:
    """Memory allocated in inference mode can be written outside of it."""
    pipe = par.Pipeline(stages(axis.size), axis, loss=mse, microbatches=2)
    x = torch.ones(4, FEATURES)
    with torch.inference_mode():
        expected = pipe.evaluate(x, x)
    for _ in range(3):
        assert torch.equal(pipe.step(x, x), expected)
    with torch.inference_mode():
        assert torch.equal(pipe.evaluate(x, x), expected)


class Live:
    """Creates contexts that count the saved tensors that are still alive."""

    class Saved:
        def __init__(self, live: Live, tensor: torch.Tensor) -> None:
            self.live, self.tensor = live, tensor
            live.now += 1
            live.peak = max(live.peak, live.now)

        def __del__(self) -> None:
            self.live.now -= 1

    def __init__(self) -> None:
        self.now = self.peak = 0

    @contextmanager
    def __call__(self) -> Iterator[None]:
        with torch.autograd.graph.saved_tensors_hooks(
            lambda tensor: Live.Saved(self, tensor.detach()), lambda saved: saved.tensor
        ):
            yield


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_activations_that_are_held(schedule: str, axis: par.Axis) -> None:
    """As many as the schedules' formulas say, and none after the step."""
    chunks = 2 if schedule == "interleaved" else 1
    number = chunks * axis.size

    def held(microbatches: int) -> int:
        live = Live()
        pipe = par.Pipeline(
            stages(number),
            axis,
            loss=lambda output, _: output.sum(),  # saves nothing
            schedule=schedule,
            microbatches=microbatches,
            activations=live,
        )
        x = torch.ones(2 * microbatches, FEATURES)
        pipe.step(x, x)
        assert live.now == 0
        return live.peak

    for microbatches in (1, 2, 5, 8):
        program = make_schedule(schedule, axis.size, microbatches, chunks)[axis.rank]
        most = peak_activations(program)
        if schedule == "zb-h1":  # tensors that no weight needs are freed before the second half
            assert 1 <= held(microbatches) <= most
        else:
            assert held(microbatches) == most


def test_frames() -> None:
    """Tensors are restored as they were, each with its own version counter."""
    tensors = [
        torch.arange(5.0, dtype=torch.float64),
        None,
        torch.ones(2, 0, 3),
        torch.tensor(7),
        torch.tensor([[True, False]]),
    ]
    wanted = [True, False, False, True, False]
    layout = frames.Layout(frames.describe(tensors, wanted))
    frame = torch.zeros(layout.nbytes, dtype=torch.uint8)
    frames.write_header(frame, layout.header)
    for place, tensor in zip(layout.views(frame), tensors, strict=True):
        if tensor is not None:
            place.copy_(tensor)
            assert place.data_ptr() % place.element_size() == 0
    read = frames.layout_in(frames.header_of(frame))
    assert read.differentiable == wanted
    views = read.views(frame)
    for view, tensor in zip(views, tensors, strict=True):
        assert (view is None) == (tensor is None)
        if tensor is not None:
            assert view.dtype == tensor.dtype
            assert torch.equal(view, tensor)
    changes = [view._version for view in views if view is not None]
    views[0].add_(1)
    assert [view._version for view in views if view is not None][1:] == changes[1:]


def test_frames_with_too_many_tensors() -> None:
    many = [torch.ones(1)] * 40
    with pytest.raises(ValueError, match="hands over 40 tensors, more than a header has room for"):
        frames.Layout(frames.describe(many, [True] * 40))


def test_reasons_are_cut_between_characters() -> None:
    for text in ("", "why", "ä" * 400):
        header = frames.header_of(frames.failed_frame(text))
        kind, _ = frames.read_header(header)
        assert kind is frames.Kind.FAILED
        assert frames.reason_in(header) == text[:248]


def test_sizes_are_expected_once_they_come_twice() -> None:
    sizes = frames.Sizes(2)
    found = []
    for nbytes in (800, 600, 800, 600, 800, 700, 800, 600, 900, 600, 900, 600):
        found.append(sizes.expected)
        sizes.note(nbytes)
    bare = frames.HEADER_BYTES
    assert found == [bare, bare, bare, bare, 800, 600, 800, bare, 800, bare, bare, 600]
