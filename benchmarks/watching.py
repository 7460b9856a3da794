"""Measures the cost of watching a job: horoscalerun --status-port.

    python benchmarks/watching.py

It has five parts: the time of the runtime's thread for the one report per second (it copies its
counters), also with tensors of adaptive compression, the time of the rank's telemetry thread, the
time of the launcher of a thousand simulated ranks for their reports and for a response, and the
length of a job's steps with and without watching.
"""

from __future__ import annotations

import argparse
import gzip
import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

sys.path.append(str(Path(__file__).parents[1] / "tests" / "python"))
from support.watched_job import WatchedJob

STEP_TENSORS = 50
MANY = 1000  # ranks


def median_us(call: Callable[[], object], times: int = 2000) -> float:
    taken = []
    for _ in range(times):
        began = time.perf_counter()
        call()
        taken.append(time.perf_counter() - began)
    return median(taken) * 1e6


def copies_us(times: int = 500) -> float:
    """What the runtime's thread says itself that a copy of its counters takes."""
    import horoscale.numpy as hvd

    taken = []
    before = hvd.metrics()["metrics_seconds"]
    for _ in range(times):
        now = hvd.metrics()["metrics_seconds"]
        taken.append(now - before)
        before = now
    return median(taken) * 1e6


def of_adaptive(tensors: int) -> float:
    """The same on this rank, one of two hosts, which compress so many tensors adaptively."""
    import numpy as np

    import horoscale.numpy as hvd

    hvd.init()
    gradient = np.ones(256, np.float32)
    for index in range(tensors):
        name = f"allreduce.layers.{index}.attention.weight"
        hvd.allreduce(gradient, name=name, compression=hvd.Compression.adaptive())
    assert len(hvd.metrics()["process_sets"]["0"]["adaptive"]) == tensors
    taken = copies_us(200)
    hvd.barrier()
    return taken


def of_runtime(sets: int) -> dict[str, float]:
    """Measures one rank, in which the caller is the runtime's thread."""
    import socket

    import numpy as np

    import horoscale.numpy as hvd
    from horoscale.common.telemetry import Telemetry

    hvd.init(process_sets="dynamic")
    own_sets = [hvd.add_process_set([0], distinct=True) for _ in range(sets - 1)]
    for process_set in (hvd.global_process_set, *own_sets):
        for _ in range(3):
            hvd.allreduce(
                np.ones(1 << 12, np.float32), name="layers.3.weight", process_set=process_set
            )

    own, other = socket.socketpair()
    telemetry = Telemetry(own)
    report = median_us(lambda: (telemetry.tell(telemetry.read()), other.recv(1 << 16)), 300)
    return {"sets": sets, "runtime_us": copies_us(), "report_us": report}


def of_steps(seconds: float) -> float:
    """The median step of this rank: many small tensors, nothing computed."""
    import numpy as np

    import horoscale.numpy as hvd

    hvd.init()
    tensors = [np.ones(1024, np.float32) for _ in range(STEP_TENSORS)]
    taken = []
    until = time.monotonic() + seconds
    going_on = np.ones(1)
    while going_on[0] > 0:
        began = time.perf_counter()
        handles = [hvd.allreduce_async(one, name=f"g.{i}") for i, one in enumerate(tensors)]
        for handle in handles:
            hvd.synchronize(handle)
        taken.append(time.perf_counter() - began)
        if len(taken) % 50 == 0:
            going_on = hvd.broadcast(np.array([until - time.monotonic()]), 0, name="end")
    return median(taken) * 1e6


def job(*own: object, flags: tuple[str, ...] = (), hosts: int = 1) -> float:
    """What rank 0 prints of a job of two ranks of this program, on one host or two."""
    command = [sys.executable, Path(__file__).resolve(), *map(str, own)]
    if hosts == 2:
        command = ["sh", "-c", 'HOROSCALE_HOSTNAME=node$HOROSCALE_RANK exec "$@"', "sh", *command]
    ended = subprocess.run(
        [sys.executable, "-m", "horoscale.runner", "-np", "2", *flags, *command],
        capture_output=True,
        check=True,
        timeout=120,
    )
    lines = [
        line.partition(b":")[2] for line in ended.stdout.splitlines() if b"[0]<stdout>" in line
    ]
    return float(lines[-1])


def of_launcher(times: int = 60) -> None:
    """Measures reports in which everything has changed, from hosts of eight ranks, and a
    response."""
    from horoscale.watch.server import _GZIP_LEVEL, Answers

    simulated = WatchedJob(MANY)
    taken, answers, compressing = [], [], []
    for _ in range(times):
        payloads = simulated.payloads()
        began = time.process_time()
        for host, payload in payloads:
            simulated.watch.report(json.loads(payload), host)
        taken.append(time.process_time() - began)
        began = time.process_time()
        body = Answers(simulated.watch).json(None, 0)
        answers.append(time.process_time() - began)
        began = time.process_time()
        compressed = gzip.compress(body, _GZIP_LEVEL, mtime=0)
        compressing.append(time.process_time() - began)
    print(f"the launcher of {MANY} ranks, in ms of a core")
    size = sum(len(payload) for _, payload in payloads)
    print(f"  a second's reports  {median(taken) * 1e3:6.1f}  {size / 1e6:.2f} MB")
    print(f"  an answer           {median(answers) * 1e3:6.1f}  {len(body) / 1e6:.2f} MB")
    print(f"  compressing it      {median(compressing) * 1e3:6.1f}  {len(compressed) / 1e3:.0f} KB")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=5, help="jobs of each kind (default 5)")
    parser.add_argument("--seconds", type=float, default=3.0, help="of each job (default 3)")
    parser.add_argument("--steps", type=float, help=argparse.SUPPRESS)
    parser.add_argument("--sets", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--tensors", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.steps is not None:
        print(of_steps(options.steps))
        return
    if options.tensors is not None:
        print(of_adaptive(options.tensors))
        return
    if options.sets is not None:
        print(json.dumps(of_runtime(options.sets)))
        return
    print("one report a second: the runtime's thread, and the rank's telemetry thread, in us")
    for sets in (1, 8, 64, 256):
        told = subprocess.run(
            [sys.executable, __file__, "--sets", str(sets)], capture_output=True, check=True
        )
        one = json.loads(told.stdout)
        print(f"  {sets:3} process sets  {one['runtime_us']:7.1f}  {one['report_us']:8.1f}")
    for tensors in (10, 300, 4096):
        taken = job("--tensors", tensors, hosts=2)
        print(f"  {tensors:4} adaptive tensors {taken:6.1f}")
    of_launcher()
    steps, watched = ("--steps", options.seconds), ("--status-port", "0")
    pairs = [(job(*steps), job(*steps, flags=watched)) for _ in range(options.runs)]
    print(f"a step of {STEP_TENSORS} tensors of 4 KiB on 2 ranks, in us: min, median, max of jobs")
    for name, values in zip(("not watched", "watched"), zip(*pairs, strict=True), strict=True):
        print(f"  {name:12} {min(values):8.1f} {median(values):8.1f} {max(values):8.1f}")
    print(f"  watched takes {median(b - a for a, b in pairs):+.1f} us more in the median pair")


if __name__ == "__main__":
    main()
