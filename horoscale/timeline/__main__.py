"""python -m horoscale.timeline: see the package."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from io import BufferedWriter
from pathlib import Path

from horoscale._private_file import open_private
from horoscale.timeline.files import TimelineError, merge, read_job
from horoscale.timeline.report import report


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m horoscale.timeline", description="Reads the timelines of a job's ranks."
    )
    commands = parser.add_subparsers(dest="command", required=True)
    for name, text in (
        ("merge", "write one file of all ranks, for Perfetto (https://ui.perfetto.dev)"),
        ("report", "show steps, exposed communication, and which ranks waited for which"),
    ):
        command = commands.add_parser(name, help=text, description=text)
        command.add_argument(
            "place",
            type=Path,
            metavar="DIR",
            help="the folder with the files of one job, or the file of rank 0",
        )
        if name == "merge":
            command.add_argument(
                "-o",
                "--output",
                type=Path,
                metavar="FILE",
                help="the output file (default: merged.json beside the ranks' files); - for stdout",
            )
        else:
            command.add_argument(
                "--step",
                metavar="NAME",
                help='the operation that each rank submits once per step, such as "set 0: loss"',
            )
    parsed = parser.parse_args(arguments)
    try:
        ranks = read_job(parsed.place)
        if parsed.command == "report":
            sys.stdout.write(report(ranks, parsed.step))
        else:
            _write(merge(ranks), parsed.output, parsed.place, len(ranks))
    except (TimelineError, OSError) as error:
        sys.stderr.write(f"{parser.prog}: error: {error}\n")
        return 2
    return 0


def _write(text: str, output: Path | None, place: Path, ranks: int) -> None:
    if output == Path("-"):
        sys.stdout.write(text)
        return
    folder = place if place.is_dir() else place.parent
    file = output or folder / "merged.json"
    with BufferedWriter(open_private(file)) as written:
        written.write(text.encode())
    sys.stdout.write(f"{file}: {ranks} ranks\n")


if __name__ == "__main__":
    sys.exit(main())
