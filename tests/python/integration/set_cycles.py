"""One rank of many cycles that add, use and remove process sets, without any growth.

    horoscalerun -np 4 python set_cycles.py --cycles 10000

Prints resident memory, threads, descriptors and mappings of this process after a warm-up and at the
end, as JSON.
"""

from __future__ import annotations

import argparse
import faulthandler
import gc
import json
import os
import time
from pathlib import Path

import numpy as np

import horoscale.numpy as hvd

SECONDS_WITHOUT_PROGRESS = 60


def status() -> dict[str, str]:
    lines = Path("/proc/self/status").read_text().splitlines()
    return dict(line.split(":", 1) for line in lines)


def living_threads() -> int:
    """The minimum of several counts: the kernel lists threads longer than join() waits."""
    counts = []
    for _ in range(20):
        counts.append(int(status()["Threads"]))
        time.sleep(0.001)
    return min(counts)


def holdings() -> dict[str, int]:
    faulthandler.cancel_dump_traceback_later()  # it is a thread
    gc.collect()
    hvd.barrier()  # peers have removed their part, too
    return {
        "resident_kib": int(status()["VmRSS"].split()[0]),
        "threads": living_threads(),
        "descriptors": len(os.listdir("/proc/self/fd")),
        "mappings": len(Path("/proc/self/maps").read_text().splitlines()),
    }


def cycle(number: int) -> None:
    """Adds, uses and removes two overlapping sets that change from cycle to cycle."""
    size, me = hvd.size(), hvd.rank()
    first = number % size
    lists = [{first, (first + 1) % size}, {first, (first + 2) % size}]
    sets = [hvd.add_process_set(sorted(ranks)) for ranks in lists]
    handles = [
        (one, hvd.allreduce_async(np.full(1000, me), op=hvd.Sum, process_set=one, name="x"))
        for one in sets
        if one.included()
    ]
    for one, handle in handles:
        assert (hvd.synchronize(handle) == sum(one.ranks)).all()
        hvd.allgather(np.full((1 + me, 3), me), process_set=one)
    for one in sets:
        assert hvd.remove_process_set(one)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cycles", type=int, required=True)
    parser.add_argument("--warm-up", type=int, default=300)
    arguments = parser.parse_args()
    hvd.init(process_sets="dynamic")
    assert hvd.size() > 2
    report = {}
    for number in range(arguments.cycles):
        if number == arguments.warm_up:
            report["before"] = holdings()
        faulthandler.dump_traceback_later(SECONDS_WITHOUT_PROGRESS, exit=True)
        cycle(number)
    report["after"] = holdings()
    print(json.dumps(report), flush=True)
    hvd.shutdown()


if __name__ == "__main__":
    main()
