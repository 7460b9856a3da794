"""Process sets of an elastic job: who their members are is told again when the ranks change.

    horoscalerun -np 4 --min-np 2 python examples/elastic_process_sets.py

The even ranks agree on one number, the odd ranks on another. After the third step the last rank
dies; the sets are there again, with the ranks that there are.
"""

from __future__ import annotations

import os
import signal

import numpy as np

import horoscale.numpy as hvd
from horoscale import elastic

even = elastic.surviving(lambda rank, size: rank % 2 == 0)
odd = elastic.surviving(lambda rank, size: rank % 2 == 1)
hvd.init(process_sets=[even, odd])
state = elastic.ObjectState(step=0)


@elastic.run
def work(state: elastic.ObjectState) -> None:
    mine = even if even.included() else odd
    while state.step < 6:
        if state.step == 3 and hvd.size() == 4 and hvd.rank() == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        total = hvd.allreduce(np.array([hvd.rank()]), op=hvd.Sum, process_set=mine)
        assert total[0] == sum(mine.ranks)
        state.step += 1
        state.commit()
    print(f"rank {hvd.rank()} of {hvd.size()}: ranks {mine.ranks} have the sum {total[0]}")


work(state)
