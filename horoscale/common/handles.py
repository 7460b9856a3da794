"""The base of all bindings' handles."""

from __future__ import annotations

import os
import threading

# Held while a result is made. It is made once, even if several threads wait for it. Making it never
# blocks.
finishing = threading.RLock()


def _after_fork_in_child() -> None:
    global finishing
    finishing = threading.RLock()  # a thread that the fork did not copy may hold the other


os.register_at_fork(after_in_child=_after_fork_in_child)
