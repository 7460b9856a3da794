"""Faults in real and simulated jobs: what fails, in which phase, and how the others react.

cd tests/python && python -m faults --real 200 --simulated 10000
"""
