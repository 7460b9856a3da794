"""What jobs on other people's engines have in common.

Engines of three kinds start ranks. Ray's tasks are processes that are handed a function: `tasks`
tells such a task which rank it is and brings home what it gave. In Spark's and Dask's tasks and in
pods run agents, through which the launcher reaches them as hosts: `agents`. Batch systems (Slurm,
LSF, PBS) hand out machines and start programs: `batch_systems` says which machines a job has, how
horoscalerun reaches them, and which rank a process is that they have started themselves.
"""
