"""Measures how much communication ring attention hides behind computation.

    python benchmarks/parallel_ring.py [--rates 250,1000] [--lengths 10240,1024] [--heads 1]

Uses two hosts, which are network namespaces (requires root, ip and tc), with a link of the given
Mbit/s. On each host a rank with one thread has half of the sequence, with the given number of
positions. By default computing a block takes longer than sending it, and messages need little of a
core. "compute" is the same attention with messages that are available immediately (random numbers),
"communication" its messages alone, and "attention" both together.

The hidden fraction is (compute + communication - attention) / communication. It is the difference
of two computations, which is unreliable on a busy machine. Therefore "waiting" is measured, too:
the time within the same attention in which the rank can only wait for messages. The fraction that
is not waited for is 1 - waiting / communication. "CPU" is the processor time of the messages alone;
if the ranks' threads use all cores, this part cannot be hidden. In the cases "asleep" the ranks
sleep twice as long as sending a block takes at that rate (in the backward pass four times) instead
of computing, and leave the cores to the messages.

A figure is the slower rank's time: the median over the calls, then the median over the rounds. A
fraction compares times of one round, with its range over the rounds.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import figures
import orders
import torch
from folders import temporary_folder
from ranks import Job

sys.path.append(str(Path(__file__).parents[1] / "tests" / "python"))
from support.namespaces import NetworkHosts, why_not

BATCH, SIZE = 1, 64
PASSES = ("forward asleep", "backward asleep", "forward", "backward")
WHAT = ("compute", "communication", "attention", "waiting", "CPU")
PORT = 29700  # no other program uses ports on these hosts


class Size(NamedTuple):
    """The shape of a rank's queries, keys and values."""

    heads: int
    length: int


class Measured(NamedTuple):
    """A figure that the job measures."""

    name: str
    job: Job

    def measure(self, *order: Any) -> float:
        """Return the median over the calls of the slower rank's seconds."""
        return self.job.measure(self.name, *order)


def run(
    rounds: int,
    smoke: bool,
    rates: tuple[int, ...] = (250,),
    lengths: tuple[int, ...] = (10240,),
    heads: int = 1,
    calls: int = 1,
) -> figures.Figures:
    """Measure with links of these rates and these numbers of positions, and print."""
    if reason := why_not():
        print(f"ring attention is not measured: {reason}")
        return {}
    if smoke:
        lengths, calls = (64,), 1
    measured: figures.Figures = {}
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(temporary_folder())
        hosts = stack.enter_context(NetworkHosts(2))
        job = Job(Path(__file__), "ring", 2, folder, folder, {}, hosts, PORT)
        stack.callback(job.end)
        for rate in rates:
            hosts.limit_rate(f"{rate}mbit")
            cases = {
                f"{one} {length} at {rate} Mbit/s": (one, Size(heads, length), rate, calls)
                for length in lengths
                for one in PASSES
            }
            measured |= figures.interleave([Measured(what, job) for what in WHAT], cases, rounds)
    print(f"ring attention, 2 hosts, {heads} heads of {SIZE}, {rounds} rounds")
    print("\n".join(figures.medians(measured, "ms", 1e3)))
    for case, of_case in measured.items():
        rounds_of = list(zip(*(of_case[what] for what in WHAT), strict=True))
        shares = {
            "hidden": [(c + m - both) / m for c, m, both, _, _ in rounds_of],
            "not waited for": [1 - waiting / m for _, m, _, waiting, _ in rounds_of],
            "CPU of communication": [cpu / m for _, m, _, _, cpu in rounds_of],
        }
        for name, of_rounds in shares.items():
            print(f"{case}: {name} {figures.spread(of_rounds)}")
    return measured


def main() -> None:
    if len(sys.argv) == 3 and not sys.argv[1].startswith("-"):
        run_rank(sys.argv[2])
        return
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--rates", default="250", help="bandwidth of the link in Mbit/s (default: 250)"
    )
    parser.add_argument("--lengths", default="10240", help="positions of a rank (default: 10240)")
    parser.add_argument("--heads", type=int, default=1, help=f"of {SIZE} features (default: 1)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--calls", type=int, default=1, help="in a round (default: 1)")
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="write the figures of every round"
    )
    parser.add_argument("--smoke", action="store_true", help="smoke test: one short round")
    arguments = parser.parse_args()
    rates, lengths = (
        tuple(map(int, text.split(","))) for text in (arguments.rates, arguments.lengths)
    )
    rounds = 1 if arguments.smoke else arguments.rounds
    measured = run(
        rounds, arguments.smoke, rates, lengths, heads=arguments.heads, calls=arguments.calls
    )
    figures.write(arguments.json, measured, np=2)


def run_rank(address: str) -> None:
    """Run as a rank."""
    import horoscale.torch as hvd

    torch.set_num_threads(1)
    hvd.init()

    def measure(what: str, one: str, size: Size, rate: int, calls: int) -> list[float]:
        one, _, sleeps = one.partition(" ")
        with contextlib.ExitStack() as stack:
            if what == "compute":
                stack.enter_context(alone())
            if sleeps:
                stack.enter_context(asleep(size, rate))
            if what in ("communication", "CPU"):
                call = messages(one, size)
                return orders.times(call, calls, 1) if what != "CPU" else cpu_times(call, calls)
            call = attention(one, size)
            return waits(call, calls) if what == "waiting" else orders.times(call, calls, 1)

    orders.serve(address, measure)
    hvd.shutdown()


def attention(one: str, size: Size) -> Callable[[], object]:
    """The forward or the backward pass of this rank's part."""
    import horoscale.torch as hvd
    import horoscale.torch.parallel as par

    axis = par.Axis.of(hvd.global_process_set, "cp")
    q, k, v = torch.randn(3, BATCH, *size, SIZE).requires_grad_()
    if one == "forward":
        return torch.no_grad()(lambda: par.ring_attention(q, k, v, axis))
    result = par.ring_attention(q, k, v, axis)
    gradient = torch.ones_like(result)
    return lambda: torch.autograd.grad(result, (q, k, v), gradient, retain_graph=True)


def messages(one: str, size: Size) -> Callable[[], object]:
    """Send and receive keys and values, and in the backward pass then their gradients."""
    import horoscale.torch as hvd

    mine, theirs = torch.zeros(2, 2, BATCH, *size, SIZE)
    other = 1 - hvd.rank()

    def exchange() -> None:
        for _ in range(1 if one == "forward" else 2):
            hvd.batch([hvd.P2POp(hvd.send, mine, other), hvd.P2POp(hvd.recv, theirs, other)])

    return exchange


def cpu_times(call: Callable[[], object], count: int) -> list[float]:
    """Return the CPU seconds of all threads of this rank, of each call."""
    seconds = []
    for _ in range(count):
        began = time.process_time()
        call()
        seconds.append(time.process_time() - began)
    return seconds


def waits(call: Callable[[], object], count: int) -> list[float]:
    """Return the seconds of each call in which this rank waits for messages."""
    from horoscale.torch.parallel.context import ring

    waited = [0.0]
    wait_for_all = ring.wait_for_all

    def timed(handles: Any) -> None:
        began = time.perf_counter()
        wait_for_all(handles)
        waited[0] += time.perf_counter() - began

    seconds = []
    with mock.patch.object(ring, "wait_for_all", timed):
        call()
        for _ in range(count):
            waited[0] = 0.0
            call()
            seconds.append(waited[0])
    return seconds


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """Replace messages by random numbers that are available immediately."""
    from horoscale.torch.parallel.context import ring

    known: dict[torch.Size, torch.Tensor] = {}

    def send(*_: object) -> Any:
        return mock.Mock(wait=lambda: None)

    def receive(_: object, block: torch.Tensor, kind: int) -> Any:
        if block.shape not in known:
            known[block.shape] = torch.randn(block.shape)
        block.copy_(known[block.shape])
        return send()

    with (
        mock.patch.object(ring._Ring, "send", send),
        mock.patch.object(ring._Ring, "receive", receive),
    ):
        yield


@contextlib.contextmanager
def asleep(size: Size, rate: int) -> Iterator[None]:
    """Sleep instead of computing, in proportion to the pairs of queries and keys."""
    from horoscale.torch.parallel.context import ring

    sending = 2 * BATCH * size.heads * size.length * SIZE * 4 * 8 / (rate * 1e6)

    def sleep(times: int, queries: torch.Tensor, keys: torch.Tensor) -> None:
        time.sleep(times * sending * queries.shape[2] * keys.shape[2] / size.length**2)

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, _: Any) -> Any:
        sleep(2, q, k)
        return torch.zeros_like(q), torch.zeros(q.shape[:-1])

    def backward(_: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *__: Any) -> Any:
        sleep(4, q, k)
        return tuple(map(torch.zeros_like, (q, k, v)))

    with (
        mock.patch.object(ring, "attend", attend),
        mock.patch.object(ring, "attend_backward", backward),
    ):
        yield


if __name__ == "__main__":
    main()
