"""The core's copies of OpenSSL's constants agree with this machine's headers, if installed."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
COMPILER = os.environ.get("CXX") or "g++"


def test_constants() -> None:
    if shutil.which(COMPILER) is None or not Path("/usr/include/openssl/ssl.h").exists():
        pytest.skip("there is no compiler, or there are no headers of OpenSSL")
    source = Path(__file__).with_name("check_openssl.cc")
    command = [COMPILER, "-std=c++20", "-fsyntax-only", f"-I{ROOT / 'cpp'}", str(source)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert ended.returncode == 0, ended.stderr
