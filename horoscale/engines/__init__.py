"""What jobs on other people's engines have in common.

Engines of two kinds start ranks. Those that have tasks (Ray, Spark, Dask) are handed a function:
`tasks` tells such a task which rank it is and brings home what it gave. Batch systems (Slurm, LSF,
PBS) hand out machines and start programs: `batch` says which machines a job has, how horoscalerun
reaches them, and which rank a process is that they have started themselves.
"""
