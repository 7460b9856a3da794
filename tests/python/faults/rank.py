"""One rank of a job in which a fault strikes the victim in a given phase.

    python rank.py PHASE ACTION VICTIM

It prints one JSON object with its result. The victim's environment passes the same arguments to the
shim, which knows the moments inside the library (connect, handshake, execute, shutdown).
"""

from __future__ import annotations

import ctypes
import faulthandler
import gc
import json
import mmap
import os
import resource
import signal
import sys
import time
from typing import Any

import numpy as np

import horoscale.numpy as hvd
from horoscale.common.exceptions import HorovodInternalError, RankFailedError

SECONDS_TO_LIVE = 60
ELEMENTS = 4 << 20  # 16 MiB: dozens of chunks
LIMITS = {  # resource limits of a process
    "descriptors": lambda: (resource.RLIMIT_NOFILE, len(os.listdir("/proc/self/fd")) + 2),
    # Leaves less than the smallest arena.
    "address space": lambda: (resource.RLIMIT_AS, address_space() + (48 << 20)),
    "file size": lambda: (resource.RLIMIT_FSIZE, 1 << 20),
}


def address_space() -> int:
    """The address space in use, in bytes."""
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[0]) * mmap.PAGESIZE


class Possessions:
    """Resources of this process that a job may leak."""

    def __init__(self) -> None:
        gc.collect()
        self.descriptors = len(os.listdir("/proc/self/fd"))
        with open("/proc/self/maps") as maps:
            self.segments = sum("memfd:" in line for line in maps)

    def exceeding(self, before: Possessions) -> dict[str, int]:
        """How much more there is than before."""
        return {
            "descriptors": self.descriptors - before.descriptors,
            "segments": self.segments - before.segments,
        }


def act(shim: ctypes.CDLL, action: str) -> None:
    """Trigger the fault, in Python code."""
    if action == "raise":
        shim.fault_note_time()
        raise ValueError("the victim's own words")
    shim.fault_note_time()
    if action == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if action == "exit":
        sys.exit(0)
    if action == "network":
        shim.fault_await_network()
    else:
        os.kill(os.getpid(), signal.SIGSTOP)


def reduce_guarded(shim: ctypes.CDLL, action: str) -> None:
    """An allreduce with the fault in its middle: at the tensor's middle page."""
    memory = mmap.mmap(-1, ELEMENTS * 4)
    array = np.frombuffer(memory, dtype=np.float32)
    array[:] = 1.0
    page = array.ctypes.data + ELEMENTS * 2
    shim.fault_guard(ctypes.c_void_p(page), ctypes.c_size_t(mmap.PAGESIZE))
    if action != "raise":
        hvd.allreduce_(array, name="gradient", op=hvd.Sum)
        return
    handle = hvd.allreduce_async_(array, name="gradient", op=hvd.Sum)
    while not os.path.exists(os.environ["FAULT_FILE"]):
        hvd.poll(handle)
    shim.fault_resume()
    raise ValueError("the victim's own words")


def be_victim(phase: str, action: str) -> None:
    shim = ctypes.CDLL(os.environ["LD_PRELOAD"])
    if phase == "negotiate":
        handle = hvd.allreduce_async(np.ones(3), name="of the victim only")
        act(shim, action)
        hvd.synchronize(handle)
    elif phase == "execute":
        reduce_guarded(shim, action)
    elif action == "raise":  # in the phase "shutdown"
        act(shim, action)
    else:
        hvd.shutdown()  # the shim injects the fault in here


def be_survivor(phase: str) -> None:
    if phase == "negotiate":
        hvd.allreduce(np.ones(3), name="gradient")
    elif phase == "execute":
        hvd.allreduce_(np.ones(ELEMENTS, dtype=np.float32), name="gradient", op=hvd.Sum)
    elif phase == "shutdown":
        hvd.allreduce(np.ones(3), name="after the victim's last")


def describe(error: Exception) -> dict[str, Any]:
    failed = isinstance(error, RankFailedError)
    return {
        "raised_at": time.monotonic(),
        "error": type(error).__name__,
        "message": str(error),
        "ranks": list(error.ranks) if failed else [],
        "process_set": error.process_set if failed else None,
        "tensor": error.tensor if failed else None,
    }


def others_go_on(survivors: hvd.ProcessSet) -> bool:
    """Whether a set without the victim still works."""
    total = hvd.allreduce(np.ones(3), name="others", op=hvd.Sum, process_set=survivors)
    return bool((total == survivors.size()).all())


def run(phase: str, action: str, victim: int) -> dict[str, Any]:
    """Take part in the job; return the result."""
    is_victim = int(os.environ["HOROSCALE_RANK"]) == victim
    size = int(os.environ["HOROSCALE_SIZE"])
    survivors = hvd.ProcessSet(rank for rank in range(size) if rank != victim)
    report: dict[str, Any] = {}
    if action in LIMITS and is_victim:
        kind, limit = LIMITS[action]()
        resource.setrlimit(kind, (limit, limit))  # the soft limit of descriptors is raised
    began_at = time.monotonic()
    try:
        hvd.init(process_sets=[survivors] if victim >= 0 else [])
        hvd.barrier()
        if is_victim and phase in ("negotiate", "execute", "shutdown"):
            be_victim(phase, action)
        else:
            be_survivor(phase)
            hvd.allreduce(np.ones(3), name="the end")
    except (HorovodInternalError, ValueError) as error:
        if is_victim and isinstance(error, ValueError):
            raise
        report = describe(error) | {"began_at": began_at}
    if hvd.is_initialized() and victim >= 0 and not is_victim:
        report["others_go_on"] = others_go_on(survivors)
    return report


def main() -> None:
    phase, action, victim = sys.argv[1], sys.argv[2], int(sys.argv[3])
    faulthandler.dump_traceback_later(SECONDS_TO_LIVE, exit=True)
    before = Possessions()
    report = run(phase, action, victim)
    hvd.shutdown()
    report["left"] = Possessions().exceeding(before)
    print(json.dumps(report), flush=True)


if __name__ == "__main__":
    main()
