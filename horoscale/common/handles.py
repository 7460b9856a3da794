"""What the handles of all bindings share."""

from __future__ import annotations

import os
import threading

# Held while a result is made, which is done once, whichever of several threads wait for it. Making
# one waits for nobody.
finishing = threading.RLock()


def _after_fork_in_child() -> None:
    global finishing
    finishing = threading.RLock()  # a thread that does not exist here may hold the other


os.register_at_fork(after_in_child=_after_fork_in_child)
