"""Measures which way to divide a model needs the least network bandwidth: stages, layers or
batches.

    python benchmarks/parallel_network.py [--rates 1000] [--dim 256] [--layers 8] [--batch 32]

Two ranks with one thread each train the GPT of examples/gpt_parallel.py on two hosts, which are
network namespaces (requires root, ip and tc), with a link of the given Mbit/s. The model is divided
into two stages (pp), in its layers (tp), or trained with half of the batch each (dp). "one" is a
single process. A figure is the slower rank's time: the median over the steps, then the median over
the rounds. Bytes are those of a step on the link, including headers and acknowledgements, from the
host that sends more.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import figures
import orders
from folders import temporary_folder
from ranks import Job

sys.path.append(str(Path(__file__).parents[1] / "tests" / "python"))
sys.path.append(str(Path(__file__).parents[1] / "examples"))
from support.namespaces import NetworkHosts, why_not

WAYS = ("one", "pp", "tp", "dp")
PORT = 29800  # no other program uses ports on these hosts


class Model(NamedTuple):
    """The size of the model and its batches."""

    dim: int = 256
    layers: int = 8
    batch: int = 32  # the example's number of characters per step
    length: int = 32
    microbatches: int = 8


SMALL = Model(32, 2, 8, 8, 4)


def run(
    rounds: int,
    smoke: bool,
    rates: tuple[int, ...] = (1000,),
    model: Model = Model(),  # noqa: B008
    steps: int = 5,
) -> figures.Figures:
    """Measure with links of these rates, and print a table for each."""
    if reason := why_not():
        print(f"model parallelism between hosts is not measured: {reason}")
        return {}
    if smoke:
        model, steps = SMALL, 1
    measured: figures.Figures = {}
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(temporary_folder())
        hosts = stack.enter_context(NetworkHosts(2))
        jobs = []
        for index, way in enumerate(WAYS):
            ranks = 1 if way == "one" else 2
            jobs.append(Job(Path(__file__), way, ranks, folder, folder, {}, hosts, PORT + index))
            stack.callback(jobs[-1].end)
        for rate in rates:
            hosts.limit_rate(f"{rate}mbit")
            cases = {
                f"{what} at {rate} Mbit/s": (what, steps, tuple(model))
                for what in ("seconds", "bytes")
            }
            measured |= figures.interleave(jobs, cases, rounds)
    for rate in rates:
        print(f"a step of a GPT, {model}, 2 hosts, {rate} Mbit/s, {rounds} rounds")
        print(table(*(measured[f"{what} at {rate} Mbit/s"] for what in ("seconds", "bytes"))))
    return measured


def table(seconds: figures.Rounds, sent: figures.Rounds) -> str:
    """Return times, bytes, and each time divided by a pipeline's."""
    lines = [f"{'':>4}{'ms':>10}{'MB sent':>10}   time / pp"]
    for way in WAYS:
        ratios = figures.ratios(seconds, way, "pp")
        milliseconds = statistics.median(seconds[way]) * 1e3
        megabytes = statistics.median(sent[way]) / 1e6
        lines.append(f"{way:>4}{milliseconds:10.1f}{megabytes:10.3f}   {figures.spread(ratios)}")
    return "\n".join(lines)


def main() -> None:
    if len(sys.argv) == 3 and sys.argv[1] in WAYS:
        run_rank(*sys.argv[1:])
        return
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rates", default="1000", help="bandwidth of the link in Mbit/s")
    for name, default in Model._field_defaults.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=5, help="in a round (default: 5)")
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="write the figures of every round"
    )
    parser.add_argument("--smoke", action="store_true", help="smoke test: one short round")
    arguments = parser.parse_args()
    rates = tuple(map(int, arguments.rates.split(",")))
    model = Model(*(getattr(arguments, name) for name in Model._fields))
    rounds = 1 if arguments.smoke else arguments.rounds
    measured = run(rounds, arguments.smoke, rates, model, arguments.steps)
    figures.write(arguments.json, measured, np=2)


def run_rank(way: str, address: str) -> None:
    """Run as a rank."""
    import torch

    import horoscale.torch as hvd

    warnings.filterwarnings("ignore", "tensor parallelism goes beyond a host")  # this is intended
    torch.set_num_threads(1)
    trainers: dict[Any, Callable[[], object]] = {}

    def measure(what: str, steps: int, model: tuple[int, ...]) -> list[float]:
        if model not in trainers:
            trainers[model] = trainer(way, Model(*model))
            for _ in range(3):  # creates the optimizer's state, and detects shapes
                trainers[model]()
        found = []
        for _ in range(steps):
            start, sent = time.perf_counter(), bytes_sent()
            trainers[model]()
            seconds = time.perf_counter() - start
            found.append(seconds if what == "seconds" else bytes_sent() - sent)
        return found

    orders.serve(address, measure)
    hvd.shutdown()


def bytes_sent() -> int:
    """The bytes that this host has sent, including headers and acknowledgements."""
    return int(Path("/sys/class/net/eth0/statistics/tx_bytes").read_text())


def trainer(way: str, model: Model) -> Callable[[], object]:
    """Return the function of a step of the example's training, divided in this way."""
    import gpt_parallel
    import torch

    import horoscale.torch.parallel as par

    mesh = par.init() if way == "one" else par.init(**{way: 2})
    options = argparse.Namespace(
        dim=model.dim,
        heads=4,
        layers=model.layers,
        length=model.length,
        microbatches=model.microbatches,
        sequence_parallel=False,
        schedule="1f1b",
        zero=0,
        lr=1e-3,
    )
    text = gpt_parallel.Text.load()
    torch.manual_seed(1)
    gpt = gpt_parallel.GPT(len(text.characters), options, mesh.tp, mesh.cp)
    step = gpt_parallel.trainer(gpt, options, mesh)
    batch = text.batch(0, model.batch, model.length)
    return lambda: step(batch)


if __name__ == "__main__":
    main()
