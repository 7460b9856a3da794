"""A rank of an elastic job that uses the link to the driver directly, without hvd.elastic.

    elastic_rank.py STEPS FOLDER

Each step is an allreduce of ones, and a commit. Ranks record events in FOLDER/rank-PID. When the
file `finish` exists, they exit normally after at least STEPS steps in a view. While the file `hold`
exists, standbys do not report that they are ready.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import numpy as np

import horoscale.numpy as hvd
from horoscale.common import job
from horoscale.common.elastic_link import LeftJobError, elastic_link
from horoscale.common.process_set_registration import begin_process_sets

STEPS, FOLDER = int(sys.argv[1]), Path(sys.argv[2])


def main() -> int:
    link = elastic_link()
    assert link is not None
    hvd.init()
    log = (FOLDER / f"rank-{os.getpid()}").open("a", buffering=1)

    def note(**what: object) -> None:
        log.write(json.dumps({"time": time.monotonic(), "pid": os.getpid(), **what}) + "\n")

    commit, cause = 0, None
    if job.is_standby():
        note(event="standby", rank=hvd.rank())
        while (FOLDER / "hold").exists():
            time.sleep(0.01)
    else:
        view = link.view()
        note(event="view", number=view.number, rank=view.rank, size=view.size, members=view.members)
    try:
        while True:
            try:
                if job.is_standby() or cause is not None:
                    asked = None if cause == "interrupt" else cause
                    commits = [one for one in (commit - 1, commit) if one > 0]
                    job.stop()
                    view = link.next_view(commits=commits, cause=asked)
                    note(
                        event="given",
                        number=view.number,
                        rank=view.rank,
                        size=view.size,
                        members=view.members,
                        previous=view.previous,
                        source=view.source,
                        commit=view.commit,
                        skip_sync=view.skip_sync,
                    )
                    cause = "the view could not be started"
                    runtime = job.start(view=view)
                    begin_process_sets(runtime, [], False)
                    cause = None
                    state = np.array([commit], dtype=np.int64)
                    commit = int(hvd.broadcast(state, root_rank=view.source)[0])
                    commit = view.commit or commit
                    note(event="synced", number=view.number, commit=commit)
                    made = 0
                elif commit == 0:
                    made = 0
                total = hvd.allreduce(np.array([1.0, link.interruption()]), op=hvd.Sum)
                assert total[0] == hvd.size(), total
                commit += 1
                made += 1
                if made == 1:
                    note(event="step", number=link.view().number, size=hvd.size(), commit=commit)
                link.report(step=commit)
                wanted = FOLDER / "finish"
                done = float(wanted.exists())
                if hvd.allreduce(np.array([done]), op=hvd.Max)[0] and made >= STEPS:
                    note(event="done", rank=hvd.rank(), size=hvd.size(), commit=commit)
                    hvd.shutdown()
                    return 0
                if total[1] > 0:
                    cause = "interrupt"
                time.sleep(0.005)
            except hvd.HorovodInternalError as error:
                note(event="error", text=str(error)[:300])
                cause = str(error)[:300] or "an error"
    except LeftJobError as left:
        note(event="left", text=str(left), status=left.status)
        return left.status


sys.exit(main())
