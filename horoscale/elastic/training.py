"""run(): calls a function until it returns, while ranks fail, join and leave."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Concatenate, ParamSpec, TypeVar

from horoscale.common.activity import Reporter
from horoscale.common.elastic_link import LeftJobError
from horoscale.common.exceptions import (
    HorovodInternalError,
    HostsUpdatedInterrupt,
    MismatchError,
)
from horoscale.elastic.membership import Membership, membership
from horoscale.elastic.state import State
from horoscale.elastic.termination import before_sigterm

P = ParamSpec("P")
S = TypeVar("S", bound=State)
T = TypeVar("T")

_running = 0  # calls of functions that run() has wrapped


def run(func: Callable[Concatenate[S, P], T]) -> Callable[Concatenate[S, P], T]:
    """Make a training function survive ranks that fail, join and leave.

        @hvd.elastic.run
        def train(state, data):
            while state.epoch < 10: ...

    The function is called with the same state on all ranks. It is called again whenever the ranks
    have changed:

    - after a failure, with the state of the last commit that all survivors have;
    - after hosts were added or removed, with the current state, because such a change happens at a
      commit.

    Do not call collectives outside the function between init() and this call, because a rank that
    joins a running job begins with state.sync().

    Returns the function's result on the ranks that are in the job at its end. HorovodInternalError
    and HostsUpdatedInterrupt are handled. Programming errors (MismatchError, DuplicateNameError)
    and all other exceptions propagate. A rank that no longer has a place exits by SystemExit.
    """

    @functools.wraps(func)
    def wrapper(state: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
        last_words = state._last_words()
        with before_sigterm(last_words):
            try:
                with _reporting(state), _counted():
                    return _Training(state, membership()).run(lambda: func(state, *args, **kwargs))
            except LeftJobError as left:
                if left.status != 0:
                    state._give_up()
                print(f"horoscale: {left}", file=sys.stderr)
                raise SystemExit(left.status) from left
            except (KeyboardInterrupt, SystemExit):
                if last_words is not None:
                    last_words()
                raise
            finally:
                state._end()

    return wrapper


def is_running() -> bool:
    """Return whether a function that run() has wrapped is being called."""
    return _running > 0


def is_mistake(error: HorovodInternalError) -> bool:
    """Return whether an error is a programming error, which would recur."""
    return isinstance(error, MismatchError)


@contextmanager
def _reporting(state: State) -> Iterator[None]:
    """Report this rank's activity every second, if the launcher listens."""
    if not membership().elastic:
        yield
        return
    reporter = Reporter(lambda: membership().report(state._progress()))
    try:
        yield
    finally:
        reporter.end()


@contextmanager
def _counted() -> Iterator[None]:
    global _running
    _running += 1
    try:
        yield
    finally:
        _running -= 1


class _Training:
    """One call of a function wrapped by run()."""

    def __init__(self, state: State, member: Membership) -> None:
        self._state = state
        self._member = member
        self._sync = True
        self._changed = False  # the ranks, since the last sync
        self._enter: Callable[[], None] | None = None  # remaining work before the next attempt
        self._failed = False

    def run(self, func: Callable[[], T]) -> T:
        if self._member.standby:
            self._prepare(None)
        while True:
            try:
                if self._enter is not None:
                    self._enter()
                    self._enter = None
                if self._sync:
                    self._state.sync()
                elif self._changed:
                    self._state._after_change()
                self._changed = False
                result = func()
                self._state._finish()
                return result
            except HostsUpdatedInterrupt:
                self._state._before_change()
                self._prepare(None)
            except HorovodInternalError as error:
                if is_mistake(error):
                    raise
                if not self._member.elastic:
                    self._state._give_up()
                    raise
                self._prepare(error)

    def _prepare(self, error: Exception | None) -> None:
        """Leave the job's current view. The subsequent _enter() may fail, too."""
        self._failed = self._failed or error is not None
        view = self._member.next_view(self._state._held(), error)

        def enter() -> None:
            self._member.enter(view)
            if view is not None and (self._failed or view.commit != self._state._number()):
                self._state._go_back(view.commit)
            self._sync = view is None or not view.skip_sync
            self._state._saved_is_present(until_sync=self._sync)
            self._state.on_reset()
            self._failed = False
            self._changed = True

        self._enter = enter
