"""Compares the predictions of par.plan() with measurements of every way to divide a model.

    python benchmarks/planning.py [--ranks 2,4] [--links host,200] [--models mlp,transformer]

Trains in all ways that the plan compares (without recomputation), on one host, and with each rank
on its own host (network namespaces, which require root, ip and tc) with a link of the given Mbit/s.
"measured" is the median over the rounds, in which the ways alternate, of the median of a round's
steps. "busy" is the part that the slowest rank's program computed, by its thread's processor time.
Next to it are the parts that the model predicts: compute, communication, bubble and waiting.
"within" compares the better of the first two predictions with the best measured way: 1.00 is that
way, 1.10 takes a tenth longer.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import sys
import time
from dataclasses import astuple, replace
from pathlib import Path
from typing import Any

import figures
import orders
from folders import temporary_folder
from ranks import Job

sys.path.append(str(Path(__file__).parents[1] / "tests" / "python"))
from support.namespaces import NetworkHosts, why_not

PORT = 29710  # no other program uses ports on these hosts
WORDS, LENGTH = 1000, 64
SIZES = {"mlp": (256, 8, 64), "transformer": (256, 4, 16)}  # width, layers, rows of a batch
SMALL = {"mlp": (32, 4, 16), "transformer": (32, 2, 8)}


def run(
    rounds: int,
    steps: int,
    smoke: bool,
    ranks: tuple[int, ...],
    links: tuple[str, ...],
    models: tuple[str, ...],
) -> figures.Figures:
    """Compare, and print a table for each model, number of ranks and link."""
    measured: figures.Figures = {}
    for number in ranks:
        for link in links:
            if link != "host" and (reason := why_not()):
                print(f"links of {link} Mbit/s are not measured: {reason}")
                continue
            with contextlib.ExitStack() as stack:
                folder = stack.enter_context(temporary_folder())
                hosts = None
                if link != "host":
                    hosts = stack.enter_context(NetworkHosts(number))
                    hosts.limit_rate(f"{link}mbit")
                variables = {"XDG_CACHE_HOME": str(folder)}
                job = Job(
                    Path(__file__), "planning", number, folder, folder, variables, hosts, PORT
                )
                stack.callback(job.end)
                for model in models:
                    measured |= compare(job, folder, model, number, link, rounds, steps, smoke)
    return measured


def compare(
    job: Job,
    folder: Path,
    model: str,
    number: int,
    link: str,
    rounds: int,
    steps: int,
    smoke: bool,
) -> figures.Figures:
    """Plan one model, train it in each way, and print the table."""
    file = folder / "plan.json"
    job.measure("plan", model, smoke, str(file))
    said = json.loads(file.read_text())
    print(said["machine"], file=sys.stderr)
    predicted: list[tuple[str, float, list[float]]] = said["costs"]
    if smoke:
        predicted = predicted[:3]
    seconds: list[list[float]] = [[] for _ in predicted]
    busy: list[list[float]] = [[] for _ in predicted]
    for _ in range(rounds):
        for choice, of_choice in enumerate(seconds):
            of_choice.append(job.measure("train", choice, steps))
            busy[choice].append(job.measure("busy"))
    medians = list(map(statistics.median, seconds))
    where = "one host" if link == "host" else f"hosts of one rank, {link} Mbit/s"
    print(f"\n{model}, {number} ranks, {where}\n")
    print("| | predicted, ms | its parts | measured, ms | busy | predicted / measured |")
    print("|---|---|---|---|---|---|")
    for (name, step, parts), median, processor in zip(predicted, medians, busy, strict=True):
        text = " + ".join(f"{part * 1e3:.1f}" for part in parts)
        print(
            f"| {name} | {step * 1e3:.2f} | {text} | {median * 1e3:.2f} | "
            f"{statistics.median(processor) * 1e3:.2f} | {step / median:.2f} |"
        )
    errors = [abs(step / one - 1) for (_, step, _), one in zip(predicted, medians, strict=True)]
    print(
        f"\nwithin {min(medians[:2]) / min(medians):.2f} of the best; predictions differ by "
        f"{statistics.median(errors):.0%}, at most {max(errors):.0%}; "
        f"{sum(one <= 0.25 for one in errors)} of {len(errors)} by 25% or less",
        flush=True,
    )
    case = f"{model}, {number} ranks, {link}"
    return {f"{case}, {name}": {"measured": one, "predicted": [step]}
            for (name, step, _), one in zip(predicted, seconds, strict=True)}  # fmt: skip


def run_rank(address: str) -> None:
    """Run as a rank."""
    import torch
    from support.planning_models import (
        PLAN,
        TRANSFORMER_PLAN,
        Block,
        Half,
        cross_entropy,
    )
    from torch import nn

    import horoscale.torch as hvd
    import horoscale.torch.parallel as par

    torch.set_num_threads(1)
    hvd.init(process_sets="dynamic")
    state: dict[str, Any] = {}

    def make(model: str, smoke: bool) -> tuple[nn.Sequential, tuple[torch.Tensor, torch.Tensor]]:
        torch.manual_seed(1)
        width, layers, rows = (SMALL if smoke else SIZES)[model]
        if model == "mlp":
            blocks: list[nn.Module] = [Half(width, 4 * width) for _ in range(layers)]
            batch = torch.randn(rows, width), torch.randint(10, (rows,))
            return nn.Sequential(*blocks, nn.Linear(width, 10)), batch
        words = torch.randint(WORDS, (rows, LENGTH))
        blocks = [Block(width) for _ in range(layers)]
        head = nn.Linear(width, WORDS)
        return nn.Sequential(nn.Embedding(WORDS, width), *blocks, head), (words, words.roll(-1, 1))

    def measure(what: str, *order: Any) -> list[float]:
        if what == "plan":
            model, smoke, file = order
            whole, batch = make(model, smoke)
            state["model"] = model, smoke
            state["planned"] = planned = par.plan(
                whole,
                batch,
                loss=cross_entropy,
                tensor_parallel=TRANSFORMER_PLAN if model == "transformer" else PLAN,
                recompute=[False],
                microbatches=[1, 2, 4, 8],
            )
            if hvd.rank() == 0:
                found = [
                    (
                        str(one.strategy),
                        one.step,
                        astuple(one.parts),
                    )
                    for one in planned.costs
                ]
                said = {"costs": found, "machine": str(planned.machine)}
                Path(file).write_text(json.dumps(said))
            return [0.0]
        if what == "busy":
            return [state["busy"]]
        choice, count = order
        model, batch = make(*state["model"])
        planned = replace(state["planned"], model=model)
        mesh = planned.apply(choice)
        pipe = planned.pipeline(mesh)
        microbatches = planned.costs[choice].strategy.microbatches
        optimizer = par.DistributedOptimizer(
            torch.optim.AdamW(pipe.parameters()),
            pipe.module,
            mesh,
            backward_passes_per_step=microbatches,
        )
        x, target = (one.chunk(mesh.dp.size)[mesh.dp.rank] for one in batch)

        processor: list[float] = []

        def step() -> None:
            begin = time.thread_time()
            optimizer.zero_grad()
            pipe.step(x, target)
            optimizer.step()
            processor.append(time.thread_time() - begin)

        try:
            hvd.barrier()
            found = orders.times(step, count, warm_up=2)
            state["busy"] = statistics.median(processor[2:])
            return found
        finally:
            hvd.barrier()
            mesh.close()

    orders.serve(address, measure)
    hvd.shutdown()


def main() -> None:
    if len(sys.argv) == 3 and not sys.argv[1].startswith("-"):
        run_rank(sys.argv[2])
        return
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ranks", default="2,4", help="how many, comma-separated")
    parser.add_argument("--links", default="host,200", help='"host", or Mbit/s between hosts')
    parser.add_argument("--models", default="mlp,transformer")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--steps", type=int, default=5, help="steps of a round, after two (default: 5)"
    )
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="write the figures of every round"
    )
    parser.add_argument("--smoke", action="store_true", help="smoke test: one short round")
    arguments = parser.parse_args()
    ranks = tuple(map(int, arguments.ranks.split(",")))
    links, models = (tuple(one.split(",")) for one in (arguments.links, arguments.models))
    rounds, steps = (1, 2) if arguments.smoke else (arguments.rounds, arguments.steps)
    if arguments.smoke:
        ranks, models = (2,), ("mlp",)
    measured = run(rounds, steps, arguments.smoke, ranks, links, models)
    figures.write(arguments.json, measured, ranks=list(ranks))


if __name__ == "__main__":
    main()
