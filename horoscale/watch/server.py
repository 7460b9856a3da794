"""StatusServer: serves the page, JSON and metrics of a watched job over HTTP, from a thread.

Requests must have the token, which is part of the page's URL. /healthz and the page's static files
reveal nothing about the job and need no token. The Host header must name this machine, which
prevents DNS rebinding from other websites. All requests are read-only.
"""

from __future__ import annotations

import gzip
import hmac
import io
import ipaddress
import json
import secrets
import socket
import sys
import threading
import time
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import resources
from typing import Any
from urllib.parse import parse_qs, urlsplit

from horoscale._version import __version__
from horoscale.watch import prometheus
from horoscale.watch.job import JobWatch

_MOST_CONNECTIONS = 32  # concurrent; further ones are closed
_TIMEOUT_S = 20.0  # to receive a request, from the end of the one before; to send a response
_FRESH_S = 0.5  # a snapshot is reused for this long, for all clients
_GZIP_BYTES = 1400
_GZIP_LEVEL = 5
_END_S = 0.1  # the longest that shutdown() waits for the serving loop

_FILES = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/page.css": ("page.css", "text/css; charset=utf-8"),
    "/page.js": ("page.js", "text/javascript; charset=utf-8"),
    "/icon.svg": ("icon.svg", "image/svg+xml"),
}
_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
# Parts of the snapshot with an endpoint of their own.
_PARTS = ("job", "ranks", "sets", "links", "history", "findings", "recoveries", "events")


class Answers:
    """The bodies of responses, independent of HTTP.

    JSON responses share a snapshot for half a second. Each scrape of the metrics reads the current
    state.
    """

    def __init__(self, watch: JobWatch) -> None:
        self._watch = watch
        self._lock = threading.Lock()
        self._snapshot: dict[str, Any] = {}
        self._made_at = float("-inf")

    def json(self, part: str | None, since: int) -> bytes:
        """Return the snapshot or a part of it as JSON, with only the events numbered above `since`.

        `part` is the name of a part, or None for the whole snapshot.
        """
        snapshot = self._fresh()
        events = [one for one in snapshot["events"] if one["number"] > since]
        value: Any = {**snapshot, "events": events} if part is None else snapshot[part]
        if part == "events":
            value = events
        return json.dumps(value, separators=(",", ":")).encode() + b"\n"

    def metrics(self) -> tuple[bytes, str]:
        """Return the metrics in the Prometheus text format, and its content type.

        Raises:
            prometheus.MissingError: prometheus-client is not installed.
        """
        return prometheus.exposition(self._watch)

    def _fresh(self) -> dict[str, Any]:
        with self._lock:
            now = time.monotonic()
            if now - self._made_at >= _FRESH_S:
                self._snapshot, self._made_at = self._watch.snapshot(), now
            return self._snapshot


class StatusServer:
    """An HTTP server that runs in a thread from its creation until close().

    Raises:
        OSError: The server cannot bind to the address.
    """

    def __init__(
        self, watch: JobWatch, port: int, address: str = "127.0.0.1", token: str | None = None
    ) -> None:
        """Bind and start serving; port 0 selects a free port, no token generates one."""
        self.token = token or secrets.token_urlsafe(24)
        self.address = address
        self._server = _Server(address, port, Answers(watch), self.token)
        self.port: int = self._server.server_address[1]
        self._thread = threading.Thread(
            target=self._server.serve_forever,
            kwargs={"poll_interval": _END_S},
            name="horoscale-status",
            daemon=True,
        )
        self._thread.start()

    @property
    def is_local(self) -> bool:
        """Whether the server is reachable only from this machine (a loopback address)."""
        return self._server.is_local

    def url(self, host: str | None = None) -> str:
        """Return the URL of the page, without the token; `host` defaults to the bound address."""
        name = host or self.address
        return f"http://{f'[{name}]' if ':' in name else name}:{self.port}/"

    def close(self) -> None:
        """Stop serving and wait for the serving thread to end."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 64

    def __init__(self, address: str, port: int, answers: Answers, token: str) -> None:
        self.address_family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self.answers = answers
        self.token = token
        self.name = socket.gethostname().lower()
        self.is_local = ipaddress.ip_address(address).is_loopback
        self._places = threading.BoundedSemaphore(_MOST_CONNECTIONS)
        super().__init__((address, port), _Handler)

    def server_bind(self) -> None:
        """Bind without a reverse DNS lookup of this host, which HTTPServer does."""
        if self.allow_reuse_address:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()

    def process_request(self, request: Any, client_address: Any) -> None:
        """Serve a connection in a new thread, or close it if there are too many."""
        if not self._places.acquire(blocking=False):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:  # the thread did not start
            self._places.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Serve a connection, then release its place; runs in the connection's thread."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._places.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print errors of the server; ignore OSError, such as a client that disconnected."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)


class _Received(io.RawIOBase):
    """A raw reader of a connection with one deadline for all reads, however slowly bytes arrive."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self.until = float("inf")

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Receive bytes into `buffer`; return their number.

        Raises:
            TimeoutError: The deadline `until` has passed.
        """
        left = self.until - time.monotonic()
        if left <= 0:
            raise TimeoutError
        timeout = self._connection.gettimeout()
        self._connection.settimeout(left)
        try:
            return self._connection.recv_into(buffer)
        finally:
            self._connection.settimeout(timeout)


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    protocol_version = "HTTP/1.1"
    timeout = _TIMEOUT_S
    server_version = f"horoscale/{__version__}"
    sys_version = ""

    def setup(self) -> None:
        """Replace the reader by one with a deadline per request."""
        super().setup()
        self.rfile.close()
        self._received = _Received(self.connection)
        self.rfile = io.BufferedReader(self._received)

    def handle_one_request(self) -> None:
        """Handle one request, which must arrive before the deadline."""
        self._received.until = time.monotonic() + self.timeout
        super().handle_one_request()

    def do_GET(self) -> None:
        """Respond to a GET or HEAD request."""
        try:
            url = urlsplit(self.path)
        except ValueError:
            self._refuse(HTTPStatus.BAD_REQUEST, "this is no address")
            return
        if not self._is_our_host(self.headers.get("Host", "")):
            self._refuse(HTTPStatus.MISDIRECTED_REQUEST, "this Host is none of this machine's")
            return
        if url.path == "/healthz":
            self._send(HTTPStatus.OK, b"ok\n", "text/plain; charset=utf-8")
            return
        if url.path in _FILES and url.path != "/":
            self._send_file(url.path)
            return
        if not self._knows_token(url.query):
            self._refuse(
                HTTPStatus.UNAUTHORIZED,
                "the token is missing or wrong: open the URL that horoscalerun has printed",
            )
            return
        if url.path == "/":
            self._send_file("/")
        elif url.path == "/metrics":
            self._send_metrics()
        else:
            self._send_json(url.path, url.query)

    do_HEAD = do_GET  # noqa: N815 (http.server's name)

    def _send_json(self, path: str, query: str) -> None:
        name = path.removeprefix("/api/v1/")
        if name == path or (name != "status" and name not in _PARTS):
            self._refuse(HTTPStatus.NOT_FOUND, f"there are /api/v1/status and {', '.join(_PARTS)}")
            return
        given = parse_qs(query).get("since", ["0"])[-1]
        if not given.isascii() or not given.isdecimal() or len(given) > 18:
            self._refuse(HTTPStatus.BAD_REQUEST, "since: expected the number of an event")
            return
        body = self.server.answers.json(None if name == "status" else name, int(given))
        self._send(HTTPStatus.OK, body, "application/json")

    def _send_metrics(self) -> None:
        try:
            body, kind = self.server.answers.metrics()
        except prometheus.MissingError as error:
            self._refuse(HTTPStatus.NOT_IMPLEMENTED, str(error))
            return
        self._send(HTTPStatus.OK, body, kind)

    def _send_file(self, path: str) -> None:
        name, kind = _FILES[path]
        body = resources.files("horoscale.watch").joinpath("page").joinpath(name).read_bytes()
        self._send(HTTPStatus.OK, body, kind)

    def _refuse(self, status: HTTPStatus, why: str) -> None:
        body = f"{status.value} {status.phrase}: {why}\n".encode()
        self._send(status, body, "text/plain; charset=utf-8")

    def _send(self, status: HTTPStatus, body: bytes, kind: str) -> None:
        accepted = self.headers.get("Accept-Encoding", "") if self.headers else ""
        compressed = len(body) > _GZIP_BYTES and "gzip" in accepted
        if compressed:
            body = gzip.compress(body, _GZIP_LEVEL, mtime=0)
        self.send_response(status)
        for name, value in _HEADERS.items():
            self.send_header(name, value)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        if compressed:
            self.send_header("Content-Encoding", "gzip")
        if status == HTTPStatus.UNAUTHORIZED:
            self.send_header("WWW-Authenticate", "Bearer")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _knows_token(self, query: str) -> bool:
        """Return whether the request has the token, as a bearer token or in the URL's query."""
        scheme, _, given = self.headers.get("Authorization", "").partition(" ")
        if scheme.lower() != "bearer":
            given = parse_qs(query).get("token", [""])[-1]
        return hmac.compare_digest(given.strip().encode(), self.server.token.encode())

    def _is_our_host(self, given: str) -> bool:
        """Return whether a Host header is an IP address or a name of this machine, with any port.

        Other names may resolve to this machine (DNS rebinding). An IP address can't be rebound.
        """
        try:
            name = (urlsplit(f"//{given}").hostname or "").lower()
        except ValueError:
            return False
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return self._is_our_name(name)
        return True

    def _is_our_name(self, name: str) -> bool:
        own = self.server.name
        if name in ("localhost", own):
            return True
        # Clients may use a longer name than the host name: node1.example for node1.
        is_known = name.partition(".")[0] == own.partition(".")[0]
        return is_known and not self.server.is_local

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing: request URLs may contain the token."""
