"""A job that one can watch: what `horoscalerun --status-port` serves.

rank.py, process_sets.py, events.py, recoveries.py and job.py hold what is known of the job, without
I/O; prometheus.py and server.py serve it; page/ is what a browser gets (docs/status.md).
"""
