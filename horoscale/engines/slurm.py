"""Slurm: reads the variables of srun's tasks, and of sbatch and salloc allocations."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping

from horoscale.engines.batch import Allocation, BatchError, BatchTask, number
from horoscale.engines.nodelist import expand_counts, expand_nodes

_ASK_S = 20.0  # for slurmctld's answer; it may be busy
_FIRST_PORT, _PORTS = 20000, 12000  # below Linux's ephemeral ports

# Options of the job that its steps inherit, but that must not apply to a step which starts a node's
# ranks itself, and options that would modify the bytes sent through srun.
_NOT_FOR_STEPS = (
    *("CPUS_PER_TASK", "NTASKS_PER_NODE", "NTASKS_PER_GPU", "NTASKS_PER_CORE", "NTASKS_PER_SOCKET"),
    *("GPUS_PER_TASK", "TRES_PER_TASK", "GPU_BIND", "TRES_BIND", "CPU_BIND", "DISTRIBUTION"),
    *("LABELIO", "STDINMODE", "STDOUTMODE", "STDERRMODE", "MPI_TYPE", "EXCLUSIVE", "NO_KILL"),
)


def task(environ: Mapping[str, str]) -> BatchTask | None:
    """Return this process's place among srun's tasks; None if there is no other task.

    Raises BatchError if a variable does not parse.
    """
    if not {"SLURM_JOB_ID", "SLURM_STEP_NUM_TASKS", "SLURM_STEP_NODELIST"} <= environ.keys():
        return None
    size = number(environ, "SLURM_STEP_NUM_TASKS")
    if size < 2:
        return None
    nodes = _nodes(environ, "SLURM_STEP_NODELIST")
    own = environ.get("SLURMD_NODENAME") or nodes[number(environ, "SLURM_NODEID")]
    job, step = number(environ, "SLURM_JOB_ID"), environ.get("SLURM_STEP_ID", "0")
    # A requeued job keeps its numbers, but srun then listens on another port.
    again = environ.get("SLURM_RESTART_COUNT", "0")
    listens = environ.get("SLURM_SRUN_COMM_PORT", "")
    cluster = re.sub(r"[^\w-]", "_", environ.get("SLURM_CLUSTER_NAME", ""))
    return BatchTask(
        rank=number(environ, "SLURM_PROCID"),
        size=size,
        node=own,
        job="-".join(["slurm", cluster, str(job), step, again, listens]),
        port=_FIRST_PORT + (7 * job + int(step if step.isdigit() else 0)) % _PORTS,
        own_address=lambda: node_address(own),
        first_address=lambda: node_address(nodes[0]),
    )


def allocation(environ: Mapping[str, str]) -> Allocation | None:
    """Return the nodes of the job that this process is part of, with a slot for each task.

    Raises BatchError if a variable does not parse.
    """
    if not {"SLURM_JOB_ID", "SLURM_JOB_NODELIST", "SLURM_TASKS_PER_NODE"} <= environ.keys():
        return None
    nodes = _nodes(environ, "SLURM_JOB_NODELIST")
    try:
        counts = expand_counts(environ["SLURM_TASKS_PER_NODE"])
    except ValueError as error:
        raise BatchError(f"SLURM_TASKS_PER_NODE: {error}") from None
    own = environ.get("SLURMD_NODENAME")
    return Allocation(
        system="Slurm",
        # A step may have fewer nodes than its job, and its variable fewer numbers.
        slots=dict(zip(nodes, counts + [counts[-1]] * len(nodes), strict=False)),
        own=own if own in nodes else None,
        shell=_shell(environ["SLURM_JOB_ID"]),
        more="sbatch's --nodes and --ntasks-per-node give more",
    )


def node_address(node: str) -> str:
    """Return a node's address from Slurm, because other nodes may not resolve its name."""
    scontrol = shutil.which("scontrol")
    if scontrol is None:  # for example, in a container
        return node
    try:
        said = subprocess.run(
            [scontrol, "--oneliner", "show", "node", node],
            capture_output=True,
            text=True,
            timeout=_ASK_S,
            env={**os.environ, "LC_ALL": "C"},
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return node
    found = re.search(r"\bNodeAddr=(\S+)", said.stdout)
    return found[1] if found and said.returncode == 0 else node


def _nodes(environ: Mapping[str, str], name: str) -> list[str]:
    try:
        return expand_nodes(environ[name])
    except ValueError as error:
        raise BatchError(f"{name}: {error}") from None


def _shell(job: str) -> tuple[str, ...]:
    """Return the command that starts programs on a node, with the job's resources there."""
    unset = [
        word
        for name in _NOT_FOR_STEPS
        for prefix in ("SLURM", "SRUN")
        for word in ("-u", f"{prefix}_{name}")
    ]
    return (
        *("env", *unset, "srun", f"--jobid={job}", "--overlap", "--nodes=1", "--ntasks=1"),
        # --unbuffered, because srun would wait for the end of a line. Bytes are not modified.
        *("--unbuffered", "--mpi=none", "--cpu-bind=none", "--nodelist"),
    )
