"""The job's key-value store, through which the ranks find each other."""

from __future__ import annotations

import secrets

from horoscale._core import StoreServer

_LOOPBACK = "127.0.0.1"


class Rendezvous:
    """A store with a secret of its own, served for as long as the job lasts."""

    def __init__(self) -> None:
        self.secret = secrets.token_hex(32)
        self._server = StoreServer(_LOOPBACK, 0, self.secret)
        self.address = f"{_LOOPBACK}:{self._server.port}"

    def __enter__(self) -> Rendezvous:
        return self

    def __exit__(self, *_: object) -> None:
        self._server.close()
