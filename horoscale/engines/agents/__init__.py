"""Jobs that the launcher runs in an engine's processes: Spark's tasks, Dask's workers, pods.

    launcher ── shell ──(Unix socket)── Agents ──(TCP)── agent ── supervisor ── ranks
                                        of the driver    in a task of the engine

The engine runs an *agent* in each of its tasks. To `horoscalerun` the agents' hosts are hosts like
any other, which it reaches through a remote shell that leads to them: a job there starts, is
watched, changes its ranks, fails and ends as over ssh. An engine's own module says how its tasks
are started, and no more.
"""
