"""A rank of a job whose hosts are what HOROSCALE_HOSTNAME says: the tests of small calls.

Without those of bits, which follow the hosts (hosts_collectives.py).
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1] / "parallel" / "test_one_hop.py"

if __name__ == "__main__":
    sys.exit(pytest.main(["-q", "-p", "no:cacheprovider", "-k", "not equals_numpy", str(TESTS)]))
