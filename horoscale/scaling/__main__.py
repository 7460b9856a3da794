"""python -m horoscale.scaling: see the package."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from horoscale._tables import table
from horoscale.scaling.page import can_draw, heading, page, picture, rows
from horoscale.scaling.runs import Measured, ScalingError, run

_MANY = tuple(2**power for power in range(3, 15))  # 8 to 16,384


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit status."""
    options = _options(arguments)
    if options.published:
        print(table(*_published()))
        return 0
    if not can_draw():
        sys.stderr.write("the picture needs matplotlib: pip install matplotlib\n")
        return 2
    try:
        runs = [run(one, options.command, options.skip, options.timeout) for one in options.ranks]
    except ScalingError as error:
        sys.stderr.write(f"horoscale.scaling: error: {error}\n")
        return 1
    columns = heading(options.samples)
    sections = [("Measured", columns, rows(runs, options.mode, options.samples))]
    told: list[Measured] = []
    if options.gbit is not None:
        told = _told(options, runs)
        lines = rows([runs[0], *told], options.mode, options.samples)[1:]
        sections.append(("By the cost model", columns, lines))
        sections.append(("The cost model beside published figures", *_published()))
    for name, titles, lines in sections[: 2 if told else 1]:
        print(f"\n{name}, {options.mode} scaling\n\n{table(titles, lines)}")
    title = f"{Path(options.command[0]).name}: {options.mode} scaling"
    options.output.write_text(page(title, sections, picture(runs, told)), encoding="utf-8")
    print(f"\n{options.output}")
    return 0


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m horoscale.scaling",
        description="Runs a program on some numbers of ranks of this machine, and tells where its "
        "steps spend their time.",
    )
    add = parser.add_argument
    add("--ranks", type=_numbers, default=(1, 2), metavar="N,N,…", help="default: 1,2")
    add(
        "--mode", choices=("strong", "weak"), default="strong",
        help="whether all ranks together do the same work, or each of them",
    )  # fmt: skip
    add("--samples", type=int, help="of a step: of all ranks, or (weak) of each")
    add("--skip", type=int, default=2, help="steps at the beginning that don't count (default: 2)")
    add("--timeout", type=float, default=3600.0, help="seconds of a run (default: 3600)")
    add("-o", "--output", type=Path, default=Path("scaling.html"), help="default: scaling.html")
    add("--gbit", type=float, help="of a host's network: tell of 8 to 16,384 ranks, data parallel")
    add("--latency-us", type=float, default=20.0, help="of that network (default: 20)")
    add("--ranks-per-host", type=int, default=8, help="there (default: 8)")
    add("--inside-gbit", type=float, default=80.0, help="of collectives in a host (default: 80)")
    add("--overlap", type=float, default=0.5, help="of averages that is hidden (default: 0.5)")
    add("--published", action="store_true", help="only compare the model with published figures")
    add("command", nargs=argparse.REMAINDER, help="train.py and its arguments; {ranks} in them")
    options = parser.parse_args(arguments)
    if not options.published and not options.command:
        parser.error("a program is needed, such as train.py")
    if options.gbit is not None and min(options.gbit, options.inside_gbit) <= 0:
        parser.error("--gbit and --inside-gbit are greater than 0")
    if options.ranks_per_host < 1 or (options.samples is not None and options.samples < 1):
        parser.error("--ranks-per-host and --samples are at least 1")
    if min(options.skip, options.latency_us) < 0:
        parser.error("--skip and --latency-us are not negative")
    if not 0 <= options.overlap <= 1:
        parser.error("--overlap is between 0 and 1")
    return options


def _numbers(text: str) -> tuple[int, ...]:
    numbers = tuple(map(int, text.split(",")))
    if min(numbers) < 1:
        raise ValueError(text)
    return numbers


def _told(options: argparse.Namespace, runs: Sequence[Measured]) -> list[Measured]:
    from horoscale.scaling.extrapolate import extrapolate
    from horoscale.torch.parallel.planning.machine import Link

    latency = options.latency_us * 1e-6
    inside = Link(latency, options.inside_gbit * 1e9 / 8)
    between = Link(latency, options.gbit * 1e9 / 8)
    how = (inside, between, options.ranks_per_host, options.overlap)
    return extrapolate(runs[0], options.mode, _MANY, *how)


def _published() -> tuple[list[str], list[list[str]]]:
    from horoscale.scaling.published import comparisons

    columns = ["", "published", "cost model", "source"]
    lines = [
        [
            one.what,
            f"{one.published:.0%}",
            f"{one.lowest:.0%}" + ("" if one.lowest == one.highest else f" to {one.highest:.0%}"),
            one.source,
        ]
        for one in comparisons()
    ]
    return columns, lines


if __name__ == "__main__":
    sys.exit(main())
