"""Compares strategies to divide a model, by memory and step time, before training.

strategy.py defines a strategy. stand_ins.py and dry_run.py run a model on fake tensors. profile.py
times it. calibration.py measures machines and links. cost.py and partition.py compute. memory.py
and planner.py contain the public functions.
"""
