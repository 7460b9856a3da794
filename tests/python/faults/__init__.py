"""Faults in real and simulated jobs: what breaks, in which phase, and what others make of it.

cd tests/python && python -m faults --real 200 --simulated 10000
"""
