"""Connections between the driver's Agents and the agents: frames over TLS, with a shared secret.

The agents receive the secret in the engine's own messages. TLS is used without certificates.
Instead, both sides prove that they know the secret. Each proof is bound to the key exchange of its
connection, so a man in the middle, who has two connections, cannot forward it.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import socket
import ssl
from collections.abc import Awaitable
from typing import TypeVar

from horoscale.runner.protocol import Decoder, Header, ProtocolError, encode

PROOF_S = 10.0  # for a peer to authenticate itself
# Detects a lost machine within 40 s, like ssh's alive messages.
_ALIVE = ((socket.TCP_KEEPIDLE, 10), (socket.TCP_KEEPINTVL, 10), (socket.TCP_KEEPCNT, 3))
_READ_BYTES = 1 << 16
_MAX_HEADER_BYTES = 1 << 20
_CIPHERS = "AECDH-AES256-SHA:@SECLEVEL=0"  # without certificates; prove() authenticates

_T = TypeVar("_T")


class LinkError(Exception):
    """The peer is not authenticated, or has gone. The message is for the user."""


def tls(*, server: bool) -> ssl.SSLContext:
    """Return the TLS context of either side. Raises LinkError if Python does not support it."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if server else ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.maximum_version = ssl.TLSVersion.TLSv1_2  # has the channel binding for the proofs
    try:
        context.set_ciphers(_CIPHERS)
    except ssl.SSLError as error:
        raise LinkError(
            f"this Python's OpenSSL lacks {_CIPHERS.partition(':')[0]}: {error}"
        ) from None
    return context


class Link:
    """Sends and receives frames over a stream."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._decoder = Decoder(max_header_bytes=_MAX_HEADER_BYTES)
        self._frames: list[tuple[Header, bytes]] = []

    async def send(self, header: Header, payload: bytes = b"") -> None:
        """Send a frame, waiting for the peer if necessary. Does nothing if the peer has gone."""
        with contextlib.suppress(OSError, RuntimeError):
            self._writer.write(encode(header, payload))
            await self._writer.drain()

    async def receive(self) -> tuple[Header, bytes] | None:
        """Return the next frame; None at the end of the stream, or if the data is no frame."""
        while not self._frames:
            try:
                data = await self._reader.read(_READ_BYTES)
                self._frames = list(self._decoder.feed(data))
            except (OSError, ProtocolError):
                return None
            if not data:
                return None
        return self._frames.pop(0)

    def close(self) -> None:
        """Close it, without waiting for the peer."""
        with contextlib.suppress(OSError, RuntimeError):
            self._writer.close()

    async def prove(self, secret: str, *, server: bool) -> None:
        """Authenticate each other by the secret. Raises LinkError."""
        self._watch_machine()
        own, others = ("server", "client") if server else ("client", "server")
        if not server:  # a server sends nothing before the peer is authenticated
            await self._show(secret, own)
        frame = await within(self.receive(), PROOF_S)
        shown = frame[0].get("proof") if frame is not None else None
        if (
            not isinstance(shown, str)
            or not shown.isascii()  # compare_digest() rejects other text
            or not hmac.compare_digest(shown, self._proof(secret, others))
        ):
            raise LinkError("the other side has not proved that it belongs to the job")
        if server:
            await self._show(secret, own)

    def _watch_machine(self) -> None:
        connection = self._writer.get_extra_info("socket")
        with contextlib.suppress(OSError):  # the peer may have gone
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for option, value in _ALIVE:
                connection.setsockopt(socket.IPPROTO_TCP, option, value)

    async def _show(self, secret: str, side: str) -> None:
        await self.send({"kind": "proof", "proof": self._proof(secret, side)})

    def _proof(self, secret: str, side: str) -> str:
        binding = self._writer.get_extra_info("ssl_object").get_channel_binding("tls-unique")
        return hmac.new(secret.encode(), side.encode() + b" " + binding, "sha256").hexdigest()


async def within(awaitable: Awaitable[_T], seconds: float) -> _T:
    """Await something for at most `seconds`. Raises LinkError."""
    try:
        return await asyncio.wait_for(awaitable, seconds)
    except asyncio.TimeoutError:
        raise LinkError(f"no answer within {seconds:g} s") from None


async def connect(address: str, port: int, secret: str, seconds: float) -> Link:
    """Connect to the driver's Agents. Raises LinkError or OSError."""
    reader, writer = await within(
        asyncio.open_connection(address, port, ssl=tls(server=False)), seconds
    )
    link = Link(reader, writer)
    try:
        await link.prove(secret, server=False)
    except BaseException:
        link.close()
        raise
    return link
