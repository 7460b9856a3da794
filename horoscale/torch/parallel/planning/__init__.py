"""Which way to divide a model, what memory that takes and how long a step lasts, before training.

strategy.py says what a way is; stand_ins.py and dry_run.py run a model on tensors without memory,
profile.py times it, calibration.py measures machines and links, cost.py and partition.py compute,
memory.py and planner.py are what users call.
"""
