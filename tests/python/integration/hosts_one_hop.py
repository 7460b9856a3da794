"""The tests of small calls, in a rank whose host is given by HOROSCALE_HOSTNAME.

Excludes the tests of bits, which depend on the hosts (see hosts_collectives.py).
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1] / "parallel" / "test_one_hop.py"

if __name__ == "__main__":
    sys.exit(pytest.main(["-q", "-p", "no:cacheprovider", "-k", "not equals_numpy", str(TESTS)]))
