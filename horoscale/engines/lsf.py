"""LSF: reads the variables of jsrun's tasks, and of processes in a bsub allocation."""

from __future__ import annotations

import re
import socket
from collections.abc import Mapping

from horoscale.engines.batch import Allocation, BatchError, BatchTask, number
from horoscale.engines.pbs import count_lines

_FIRST_PORT, _PORTS = 20000, 12000


def task(environ: Mapping[str, str]) -> BatchTask | None:
    """Return this process's place among jsrun's tasks; None if there is no other task.

    Raises BatchError if a variable does not parse.
    """
    if not {"LSB_JOBID", "JSM_NAMESPACE_RANK", "JSM_NAMESPACE_SIZE"} <= environ.keys():
        return None
    size = number(environ, "JSM_NAMESPACE_SIZE")
    if size < 2:
        return None
    job = number(environ, "LSB_JOBID")
    element = number(environ, "LSB_JOBINDEX") if "LSB_JOBINDEX" in environ else 0  # of a job array
    namespace = environ.get("PMIX_NAMESPACE") or environ.get("JSM_NAMESPACE_ID", "0")
    node = socket.gethostname()
    nodes = [name for name in _hosts(environ) or [node] if not _is_launch_node(name)]
    return BatchTask(
        rank=number(environ, "JSM_NAMESPACE_RANK"),
        size=size,
        node=node,
        job=f"lsf-{job}-{element}-{re.sub(r'[^A-Za-z0-9_.-]', '_', namespace)}",
        port=_FIRST_PORT + (7 * job + element) % _PORTS,
        own_address=lambda: node,
        first_address=lambda: nodes[0] if nodes else node,
    )


def allocation(environ: Mapping[str, str]) -> Allocation | None:
    """Return the hosts of the job that this process is part of, with their slots.

    Raises BatchError if a variable does not parse, or the file that it names can't be read.
    """
    if "LSB_JOBID" not in environ:
        return None
    slots = _hosts(environ)
    if not slots:
        return None
    own = socket.gethostname()
    return Allocation(
        system="LSF",
        slots=slots,
        own=own if own in slots else None,
        shell=("blaunch",),
        more="bsub's -n gives more",
    )


def _hosts(environ: Mapping[str, str]) -> dict[str, int]:
    """Return the hosts in the job's order, from the file with a line per slot, or the variable."""
    if path := environ.get("LSB_DJOB_HOSTFILE"):
        slots = count_lines(path, "LSB_DJOB_HOSTFILE")
    else:
        words = environ.get("LSB_MCPU_HOSTS", "").split()
        pairs = list(zip(words[::2], words[1::2], strict=False))
        if 2 * len(pairs) != len(words) or not all(count.isdigit() for _, count in pairs):
            raise BatchError(
                f"LSB_MCPU_HOSTS={environ['LSB_MCPU_HOSTS']!r} does not parse: expected hosts, "
                "each with a number"
            )
        slots = {}
        for name, count in pairs:
            slots[name] = slots.get(name, 0) + int(count)
    ranks = {name: count for name, count in slots.items() if not _is_launch_node(name)}
    return ranks or slots


def _is_launch_node(name: str) -> bool:
    """Return whether a host only runs the batch script, as on systems with jsrun."""
    return re.match(r"(batch|launch)[0-9-]", name) is not None
