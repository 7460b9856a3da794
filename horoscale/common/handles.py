"""The base class of all bindings' handles."""

from __future__ import annotations

import os
import threading

# Held while a result is created. That happens once, even if several threads wait, and never blocks.
finishing = threading.RLock()


def _after_fork_in_child() -> None:
    global finishing
    finishing = threading.RLock()  # after a fork, a lost thread may hold the old lock


os.register_at_fork(after_in_child=_after_fork_in_child)
