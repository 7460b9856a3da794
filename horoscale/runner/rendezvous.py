"""The job's key-value store, through which the ranks find each other."""

from __future__ import annotations

import secrets

from horoscale._core import StoreServer


class Rendezvous:
    """A store with a secret of its own, served at an address of this machine until close()."""

    def __init__(self, host: str, *, encrypt: bool = False) -> None:
        """Listen on any free port; HorovodInternalError if that can't be.

        `encrypt`: for clients that do so too.
        """
        self.secret = secrets.token_hex(32)
        self._server = StoreServer(host, 0, self.secret, encrypt=encrypt)
        bracketed = f"[{host}]" if ":" in host else host
        self.address = f"{bracketed}:{self._server.port}"

    def close(self) -> None:
        """Stop serving."""
        self._server.close()
