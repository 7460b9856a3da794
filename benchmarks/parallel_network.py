"""Which way to divide a model asks least of a network: stages, layers or batches.

    python benchmarks/parallel_network.py [--rates 1000] [--dim 256] [--layers 8] [--batch 32]

The GPT of examples/gpt_parallel.py is trained by two ranks of one thread each, on two hosts made of
network namespaces (which needs root, ip and tc) with a link of so many Mbit/s: divided into two
stages (pp), in its layers (tp) or with half of the batch each (dp). "one" is one process with all.
A figure is the median over the steps of the slower rank's time, then the median over the rounds;
bytes are those of a step on the link, headers and acknowledgements included, from the host that
sends more.
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
PORT = 29800  # nobody else is on these hosts


class Model(NamedTuple):
    """How large the model and its batches are."""

    dim: int = 256
    layers: int = 8
    batch: int = 32  # as many characters in a step as the example has
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
    """Return times, bytes, and how much longer than a pipeline each takes."""
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
    parser.add_argument("--rates", default="1000", help="of the link, in Mbit/s")
    for name, default in Model._field_defaults.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=5, help="in a round (default: 5)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every round's figures")
    parser.add_argument("--smoke", action="store_true", help="one round of little: does it run?")
    arguments = parser.parse_args()
    rates = tuple(map(int, arguments.rates.split(",")))
    model = Model(*(getattr(arguments, name) for name in Model._fields))
    rounds = 1 if arguments.smoke else arguments.rounds
    measured = run(rounds, arguments.smoke, rates, model, arguments.steps)
    figures.write(arguments.json, measured, np=2)


def run_rank(way: str, address: str) -> None:
    """A rank's side."""
    import torch

    import horoscale.torch as hvd

    warnings.filterwarnings("ignore", "tensor parallelism goes beyond a host")  # it is meant to
    torch.set_num_threads(1)
    trainers: dict[Any, Callable[[], object]] = {}

    def measure(what: str, steps: int, model: tuple[int, ...]) -> list[float]:
        if model not in trainers:
            trainers[model] = trainer(way, Model(*model))
            for _ in range(3):  # makes the optimizer's state, and finds out shapes
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
    """All that this host has sent to others, with headers and acknowledgements."""
    return int(Path("/sys/class/net/eth0/statistics/tx_bytes").read_text())


def trainer(way: str, model: Model) -> Callable[[], object]:
    """What does a step of the example's training, divided in this way."""
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
