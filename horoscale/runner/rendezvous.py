"""The job's key-value store, through which the ranks find each other."""

from __future__ import annotations

import secrets
from types import TracebackType

_LOOPBACK = "127.0.0.1"


class Rendezvous:
    """A store with a secret of its own, served for as long as the job lasts."""

    def __init__(self) -> None:
        self.secret = secrets.token_hex(32)
        self.address = ""
        self._server = None
        # Transitional, until the core serves stores: jobs that don't use it can be started already.
        try:
            from horoscale._core import StoreServer

            self._server = StoreServer(_LOOPBACK, 0, self.secret)
            self.address = f"{_LOOPBACK}:{self._server.port}"
        except Exception:
            self._server = None

    def __enter__(self) -> Rendezvous:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._server is not None:
            self._server.close()
