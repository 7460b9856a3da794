"""Shared support for jobs on other engines.

There are three kinds of engines. Ray's tasks are processes that receive a function: `tasks` tells
such a task its rank and returns its result. Spark's and Dask's tasks and pods run agents, through
which the launcher reaches them as hosts: `agents`. Batch systems (Slurm, LSF, PBS) allocate
machines and start programs: `batch_systems` determines a job's machines, how horoscalerun reaches
them, and the rank of a process that a batch system has started itself.
"""
