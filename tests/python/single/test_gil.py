"""Other Python threads run while a call does part of the pending work."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from horoscale import _core

ROOT = Path(__file__).parents[3]
LIBRARY = Path(_core.__file__).parent / "lib" / "libhoroscale.so"
PROGRAM = """
import ctypes, os, threading
import numpy as np
import horoscale.numpy as hvd

hvd.init()
said, to_say = os.pipe()
answered, to_answer = os.pipe()

def answer():
    os.read(said, 1)
    os.write(to_answer, b"x")

data = np.ones(10, np.float32)
pending = hvd.recv_async(np.empty(10, np.float32), 0, tag=1)
thread = threading.Thread(target=answer)
thread.start()
environ = ctypes.CDLL(None)  # which the library reads, and os.environ writes
environ.setenv(b"ANSWERED", str(answered).encode(), 1)
environ.setenv(b"SAID", str(to_say).encode(), 1)
SEND
thread.join()
environ.unsetenv(b"SAID")
hvd.send(data, 0, tag=1)
hvd.synchronize(pending)
print("well")
"""
# A call that starts a prepared message, and one that describes a new one.
SENDS = {
    "again": """
from horoscale._core import DataType, MessageArg
from horoscale.common.job import current_runtime
message = MessageArg(0, 2, 0, data.ctypes.data, DataType.FLOAT32, 10)
prepared = current_runtime().prepare_message("key", message, True)
prepared.start(data, data.ctypes.data, False)
""",
    "anew": "hvd.send_async(data, 0, tag=2)",
}


@pytest.fixture(scope="module")
def held_send(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A library whose hs_send() waits for another thread."""
    library = tmp_path_factory.mktemp("held") / "libheld.so"
    source = Path(__file__).with_name("hold_send.c")
    command = ["cc", "-shared", "-fPIC", f"-I{ROOT / 'cpp' / 'include'}", "-o", str(library)]
    subprocess.run([*command, str(source), "-ldl"], check=True)
    return library


@pytest.mark.parametrize("send", SENDS)
def test_a_send_lets_other_threads_run_while_much_may_move(send: str, held_send: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.replace("SEND", SENDS[send])],
        env=os.environ | {"LD_PRELOAD": str(held_send), "LIBRARY": str(LIBRARY)},
        capture_output=True,
        text=True,
        timeout=50,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "well\n"
