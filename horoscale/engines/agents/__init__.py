"""Jobs that the launcher runs in an engine's processes: Spark's tasks, Dask's workers, pods.

    launcher ── shell ──(Unix socket)── Agents ──(TCP)── agent ── supervisor ── ranks
                                        of the driver    in a task of the engine

The engine runs an *agent* in each of its tasks. `horoscalerun` treats the agents' hosts like any
other hosts, which it reaches through a remote shell. A job there starts, is monitored, changes its
ranks, fails and ends as it does over ssh. An engine's own module only starts the tasks.
"""
