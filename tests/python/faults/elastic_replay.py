"""Repeats the training of elastic jobs without faults: elastic_replay.py FILE HOSTS

FILE has a line of JSON for each job: its seed, its views (the step in which each began, and the
host of each rank) and its steps. The ranks of a view are a process set here, with as many on each
host. Rank 0 prints the hash of each job's weights.
"""

from __future__ import annotations

import itertools
import json
import sys
from functools import partial
from pathlib import Path

from elastic_problem import Problem, bits_of

import horoscale.numpy as hvd

JOBS = [json.loads(line) for line in Path(sys.argv[1]).read_text().splitlines()]
HOSTS = int(sys.argv[2])

hvd.init(process_sets="dynamic")
SLOTS = hvd.size() // HOSTS
sets: dict[tuple[int, ...], hvd.ProcessSet] = {}
for used in itertools.product(range(SLOTS + 1), repeat=HOSTS):
    ranks = tuple(host * SLOTS + slot for host, n in enumerate(used) for slot in range(n))
    if len(ranks) == hvd.size():
        sets[ranks] = hvd.global_process_set
    elif ranks:
        sets[ranks] = hvd.add_process_set(list(ranks))


def processes_of(hosts: list[int]) -> list[int]:
    """The process here for each rank of a view."""
    taken = [itertools.count(host * SLOTS) for host in range(HOSTS)]
    return [next(taken[host]) for host in hosts]


for job in JOBS:
    problem = Problem(job["seed"])
    values = problem.weights()
    ends = [begin for begin, _ in job["views"][1:]] + [job["steps"]]
    for (begin, hosts), end in zip(job["views"], ends, strict=True):
        processes = processes_of(hosts)
        members = sets[tuple(sorted(processes))]
        average = partial(hvd.allreduce, process_set=members)
        if hvd.rank() in processes:
            for _ in range(begin, end):
                rank = processes.index(hvd.rank())
                values, _ = problem.step(values, rank, len(processes), average)
        values, plan = hvd.broadcast_object((values, problem.plan.state_dict()), processes[0])
        problem.plan.load_state_dict(plan)
    if hvd.rank() == 0:
        print(bits_of(values), flush=True)
