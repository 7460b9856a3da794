"""Live job status, served over HTTP by `horoscalerun --status-port`.

rank.py, process_sets.py, events.py, recoveries.py and job.py hold the state of the job and do no
I/O. prometheus.py and server.py serve it. page/ is the page for browsers (docs/status.md).
"""
