"""The job's key-value store, through which the ranks find each other."""

from __future__ import annotations

import secrets

from horoscale._core import StoreServer


class Rendezvous:
    """A store with its own secret, served at an address of this machine until close()."""

    def __init__(self, host: str, *, encrypt: bool = False) -> None:
        """Listen on any free port; raise HorovodInternalError on failure.

        `host` may be several addresses, separated by commas. `encrypt`: whether clients must
        encrypt, too.
        """
        self.secret = secrets.token_hex(32)
        self._server = StoreServer(host, 0, self.secret, encrypt=encrypt)
        self.port = self._server.port
        bracketed = f"[{host}]" if ":" in host else host
        self.address = f"{bracketed}:{self.port}"  # if there is one host

    def close(self) -> None:
        """Stop serving."""
        self._server.close()
