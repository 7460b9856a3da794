"""Named sets, and sets that are added and removed, on any engine: rank 0 prints their results."""

from __future__ import annotations

import os

import numpy as np

import horoscale.numpy as hvd


def main() -> str:
    size = int(os.environ.get("HOROSCALE_SIZE") or os.environ["SLURM_STEP_NUM_TASKS"])
    even = hvd.ProcessSet(range(0, size, 2))
    odd = hvd.ProcessSet(range(1, size, 2))
    os.environ["HOROSCALE_DYNAMIC_PROCESS_SETS"] = "1"
    hvd.init(process_sets=[even, odd])
    own = even if even.included() else odd
    ones = np.ones(3) * hvd.rank()
    static = hvd.allreduce(ones, op=hvd.Sum, name="static", process_set=own)[0]
    ends = hvd.add_process_set([0, hvd.size() - 1])
    dynamic = None
    if ends.included():
        dynamic = hvd.allreduce(ones, op=hvd.Sum, name="dynamic", process_set=ends)[0]
    hvd.remove_process_set(ends)
    found = hvd.allgather_object(f"{static:g} {dynamic}", name="found")
    said = f"sets {found} on {hvd.cross_size()} hosts"
    if hvd.rank() == 0:
        print(said, flush=True)
    hvd.shutdown()
    return said


EXPECTED = "sets ['2 3.0', '4 None', '2 None', '4 3.0'] on 2 hosts"

if __name__ == "__main__":
    main()
