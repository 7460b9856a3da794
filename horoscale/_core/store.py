"""The key-value store through which the ranks of a job find each other."""

from __future__ import annotations

from horoscale._core._binding import ffi, lib
from horoscale._core.errors import c_string, check


def job_secret() -> str | None:
    """Return the secret from the variables SECRET or SECRET_FILE; None if neither is set.

    Raises ValueError if it is too easy to guess, or if other users can read the file, and
    HorovodInternalError if there is no such file.
    """
    out = ffi.new("char **")
    check(lib.hs_job_secret(out))
    if out[0] == ffi.NULL:
        return None
    secret: bytes = ffi.string(ffi.gc(out[0], lib.hs_free))
    return secret.decode()


class StoreServer:
    """Serves a job's store in a thread of the library until close() or the last reference."""

    def __init__(self, host: str, port: int, secret: str | None, *, encrypt: bool = False) -> None:
        """Listen on host:port (port 0: any free one, see `port`) for clients with the secret.

        `host` may be several addresses, separated by commas; those that are not available now are
        ignored. If the secret is None, which is allowed on loopback, processes of the same user on
        this host find one automatically. Traffic is authenticated, and with `encrypt` encrypted;
        all clients must use the same setting. Raises ValueError, off loopback, for a secret that is
        too easy to guess.
        """
        out = ffi.new("hs_store_server **")
        bound_port = ffi.new("int32_t *")
        check(
            lib.hs_store_serve(
                c_string(host, "host"), port, c_string(secret, "secret"), encrypt, out, bound_port
            )
        )
        self._pointer = ffi.gc(out[0], lib.hs_store_server_free)
        self.port = int(bound_port[0])

    def close(self) -> None:
        """Stop serving."""
        ffi.release(self._pointer)


class StoreClient:
    """A connection to a job's store."""

    def __init__(
        self,
        host: str,
        port: int,
        secret: str | None,
        timeout: float = 30.0,
        *,
        encrypt: bool = False,
    ) -> None:
        """Connect within `timeout` seconds, or raise HorovodInternalError.

        `encrypt` must equal the server's setting; raises ValueError otherwise.
        """
        out = ffi.new("hs_store_client **")
        check(
            lib.hs_store_connect(
                c_string(host, "host"), port, c_string(secret, "secret"), encrypt, timeout, out
            )
        )
        self._pointer = ffi.gc(out[0], lib.hs_store_client_free)

    def set(self, key: str, value: bytes) -> None:
        """Set a key, once. Raises ValueError if it already has another value."""
        check(lib.hs_store_set(self._pointer, c_string(key, "key"), value, len(value)))

    def get(self, key: str, timeout: float) -> bytes:
        """Wait for a key for at most `timeout` seconds and return its value."""
        value = ffi.new("void **")
        nbytes = ffi.new("size_t *")
        check(lib.hs_store_get(self._pointer, c_string(key, "key"), timeout, value, nbytes))
        owner = ffi.gc(value[0], lib.hs_free)
        return bytes(ffi.buffer(owner, nbytes[0]))

    def close(self) -> None:
        """Close the connection."""
        ffi.release(self._pointer)
