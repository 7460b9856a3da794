"""A rank of horoscale.run(): receives the function, calls it, and returns the outcome.

The launcher passes the function in an unnamed file. The outcome goes to the supervisor through a
pipe. Neither leaves anything on disk, however the job ends.
"""

from __future__ import annotations

import os
import pickle
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import cloudpickle

from horoscale.runner.environment import read_by_ranks
from horoscale.runner.outcome import Outcome
from horoscale.runner.tracebacks import without_own_frames


@dataclass(frozen=True)
class Task:
    """The function that the ranks call, and its arguments."""

    function: Callable[..., Any]
    args: Sequence[Any]
    kwargs: Mapping[str, Any]

    def pickled(self) -> bytes:
        """Return the task for another process that can import the same modules."""
        task = cloudpickle.dumps((self.function, tuple(self.args), dict(self.kwargs)))
        return pickle.dumps((list(sys.path), task))


def main(arguments: Sequence[str] = ()) -> int:
    """Call the task of this rank."""
    del arguments
    task, hand_in = _over_mpirun() if "HOROSCALE_TASK_STORE" in os.environ else _from_supervisor()
    outcome, error = perform(task)
    hand_in(pickle.dumps(outcome))
    if error is not None:
        raise error  # the peers learn why this rank ends
    return 0


def perform(task: bytes, first: Sequence[Any] = ()) -> tuple[Outcome, Exception | None]:
    """Call a pickled task, with `first` before its arguments.

    Returns its outcome, and the exception if it raised one.
    """
    try:
        return Outcome(cloudpickle.dumps(call(task, first))), None
    except Exception as error:
        return _failure(error), error


def call(task: bytes, first: Sequence[Any] = ()) -> Any:
    """Call a pickled task, with `first` before its arguments; return its result."""
    path, pickled = pickle.loads(task)
    sys.path[:] = path
    function, args, kwargs = pickle.loads(pickled)
    return function(*first, *args, **kwargs)


def read_all(descriptor: int) -> bytes:
    """Return the whole content of a file, whose position other processes share."""
    size = os.fstat(descriptor).st_size
    content = bytearray()
    while len(content) < size:
        piece = os.pread(descriptor, size - len(content), len(content))
        if not piece:
            raise EOFError(f"a file of {size} bytes ended after {len(content)}")
        content += piece
    return bytes(content)


Handover = tuple[bytes, Callable[[bytes], None]]  # the task, and a function for its outcome


def _from_supervisor() -> Handover:
    task = _inherited("HOROSCALE_TASK_FD")
    result = _inherited("HOROSCALE_RESULT_FD")

    def hand_in(outcome: bytes) -> None:
        with open(result, "wb") as pipe:
            pipe.write(outcome)

    return read_all(task), hand_in


def _over_mpirun() -> Handover:
    from horoscale.runner import mpirun_task

    launcher = mpirun_task.Launcher()
    return launcher.fetch(), launcher.hand_in


def _inherited(variable: str) -> int:
    descriptor = int(os.environ.pop(variable))
    os.set_inheritable(descriptor, False)
    return descriptor


def _failure(error: Exception) -> Outcome:
    text = "".join(traceback.format_exception(error))
    if read_by_ranks(os.environ, "FULL_TRACEBACK") != "1":
        shown = without_own_frames(text.encode(errors="surrogatepass"))
        text = shown.decode(errors="surrogatepass")
    try:
        pickled = cloudpickle.dumps(error)
        pickle.loads(pickled)
    except Exception:  # it can't be pickled; its text is sent instead
        return Outcome(None, text)
    return Outcome(pickled, text)
