"""One of two ranks that save twice; one of them is killed during the second save.

    python checkpoint_kill.py POINT VICTIM FOLDER [asynchronous]

The other one prints a JSON object: the error of its save.
"""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

import horoscale.torch as hvd
import horoscale.torch.parallel as par
from horoscale.torch.parallel.checkpoint import dcp, folders

SECONDS_TO_LIVE = 120
POINTS = {  # a function, and whether its call has returned
    "before its file": (dcp, "write", False),
    "after its file": (dcp, "write", True),
    "before metadata": (dcp, "finish", False),
    "after metadata": (dcp, "finish", True),
    "before rename": (folders, "_give_place", False),
    "after rename": (folders, "_give_place", True),
}


def die_at(point: str) -> None:
    """Kill this process when it calls the function, or when that returns."""
    module, name, after = POINTS[point]
    function: Callable[..., Any] = getattr(module, name)

    def dying(*arguments: Any, **options: Any) -> None:
        if after:
            function(*arguments, **options)
        os.kill(os.getpid(), signal.SIGKILL)

    setattr(module, name, dying)


def main() -> None:
    point, victim, folder = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])
    asynchronous = "asynchronous" in sys.argv
    faulthandler.dump_traceback_later(SECONDS_TO_LIVE, exit=True)
    hvd.init(process_sets="dynamic")
    mesh = par.init(tp=2)
    model = par.ColumnParallelLinear(4, 6, mesh.tp)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for step in (1, 2):
        for parameter in model.parameters():
            nn.init.constant_(parameter, step)
        if step == 2 and hvd.rank() == victim:
            die_at(point)
        try:
            par.save(
                folder, model, optimizer, mesh, extra={"step": step}, asynchronous=asynchronous
            ).wait()
        except hvd.HorovodInternalError as error:
            print(json.dumps({"error": type(error).__name__, "step": step}), flush=True)
            os._exit(0)
    raise SystemExit("nothing has happened")


if __name__ == "__main__":
    main()
