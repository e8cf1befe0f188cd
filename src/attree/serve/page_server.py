"""The command `attree serve`: a run's page with its live model, for the browser on this computer only."""

from __future__ import annotations

import json
import sys
import threading
import webbrowser
from collections.abc import Callable, Mapping, Sequence
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from attree.errors import ArgumentError, AttreeError
from attree.explain_run.command import evaluate_targets
from attree.explain_run.write_part import open_targets
from attree.io.files import json_ready
from attree.io.terminal import plain_console
from attree.report.page.live import LiveModel
from attree.report.page.write import page_html
from attree.runs.classes import search_working_folder

ADDRESS = "127.0.0.1"

MAX_REQUEST_BYTES = 1 << 20
"""Largest body of a request."""

IDLE_SECONDS = 10.0
"""Seconds after which a connection is closed on which nothing arrives, or that takes nothing."""

MAX_CONNECTIONS = 64
"""Most connections at once. Each has a thread."""

BUSY = b"HTTP/1.0 503 Service Unavailable\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"

Answer = Callable[[Mapping[str, Any]], dict[str, Any]]
"""Answers a question of the page. Raises an `AttreeError` if the question is wrong."""


class PageServer(ThreadingHTTPServer):
    """Serves a page at `/` and answers queries at `/what_if`. It serves nothing else, and opens no files.

    Requests under another host name (DNS rebinding) and posts from another origin are refused.

    Args:
        page: The page as HTML.
        answer: Answers a question.
        port: Port to listen on; 0 takes a free one.
        seconds: Seconds after which an idle connection is closed.
        connections: Most connections at once; one more is refused with status 503.

    Raises:
        ArgumentError: The port is not free.
    """

    daemon_threads = True

    def __init__(
        self,
        page: str,
        answer: Answer,
        port: int = 0,
        seconds: float = IDLE_SECONDS,
        connections: int = MAX_CONNECTIONS,
    ) -> None:
        self.page = page.encode("utf-8")
        self.answer = answer
        self.seconds = seconds
        self._free = threading.BoundedSemaphore(connections)
        try:
            super().__init__((ADDRESS, port), _Handler)
        except (OSError, OverflowError) as error:  # in use, not allowed, or no port number
            raise ArgumentError(
                f"Expected argument `port` to be a free port, or 0, but got {port}: {error}."
            ) from error

    @property
    def address(self) -> str:
        """URL of the page."""
        return f"http://{ADDRESS}:{self.server_port}/"

    def process_request(self, request: Any, client_address: Any) -> None:
        """Handle a connection in a thread of its own, if one is free."""
        if self._free.acquire(blocking=False):
            super().process_request(request, client_address)
            return
        try:
            request.setblocking(False)  # this thread accepts connections: it must not wait for a client
            request.send(BUSY)
        except OSError:
            pass
        self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print the traceback of an error, unless the client only went away."""
        if not isinstance(sys.exception(), ConnectionError | TimeoutError):
            super().handle_error(request, client_address)

    def is_own(self, host: str | None) -> bool:
        """Whether a `Host` header names this server."""
        return host in {f"{name}:{self.server_port}" for name in (ADDRESS, "localhost")}


class _Handler(BaseHTTPRequestHandler):
    """Handles one request."""

    server: PageServer
    server_version = "attree"
    sys_version = ""

    def setup(self) -> None:
        self.request.settimeout(self.server.seconds)
        super().setup()

    def do_GET(self) -> None:
        if not self._is_allowed():
            return
        if self.path.partition("?")[0] != "/":
            self._send(HTTPStatus.NOT_FOUND, {"error": "There is nothing here."})
            return
        self._send_bytes(HTTPStatus.OK, self.server.page, "text/html; charset=utf-8")

    def do_POST(self) -> None:
        """Answer a POST request to `/what_if`; refuse other paths, and bodies that are too long or not JSON."""
        if not self._is_allowed():
            return
        length = self._length()
        is_json = self.headers.get_content_type() == "application/json"
        if self.path != "/what_if":
            self._send(HTTPStatus.NOT_FOUND, {"error": "There is nothing here."})
        elif not is_json or length is None:
            self.close_connection = True  # the body is not read
            self._send(HTTPStatus.BAD_REQUEST, {"error": f"Expected JSON of at most {MAX_REQUEST_BYTES:,} bytes."})
        else:
            self._send(*self._answer(self.rfile.read(length)))

    def _length(self) -> int | None:
        """Return the length of the body; None if the header has none, or one that is too large."""
        header = self.headers.get("Content-Length", "")
        if not (header.isascii() and header.isdigit() and len(header) <= len(str(MAX_REQUEST_BYTES))):
            return None
        return int(header) if int(header) <= MAX_REQUEST_BYTES else None

    def _answer(self, body: bytes) -> tuple[HTTPStatus, dict[str, Any]]:
        try:
            return HTTPStatus.OK, self.server.answer(json.loads(body))
        except (AttreeError, ValueError, RecursionError) as error:
            return HTTPStatus.BAD_REQUEST, {"error": str(error)}
        except Exception as error:  # the user's model may raise anything; the server keeps running
            return HTTPStatus.INTERNAL_SERVER_ERROR, {"error": f"The model failed ({type(error).__name__}: {error})."}

    def _is_allowed(self) -> bool:
        """Whether the request comes from this page on this computer. If not, send an error."""
        origin = self.headers.get("Origin")
        is_own_host = self.server.is_own(self.headers.get("Host"))
        if is_own_host and (origin is None or self.server.is_own(origin.removeprefix("http://"))):
            return True
        self.close_connection = True
        self._send(HTTPStatus.FORBIDDEN, {"error": "Only the browser on the same computer can open this page."})
        return False

    def _send(self, status: HTTPStatus, content: dict[str, Any]) -> None:
        self._send_bytes(status, json.dumps(json_ready(content), allow_nan=False).encode("utf-8"), "application/json")

    def _send_bytes(self, status: HTTPStatus, content: bytes, kind: str) -> None:
        """Send a response to the browser, with headers that forbid caching and use by other sites."""
        self.send_response(status)
        headers = {
            "Content-Type": kind,
            "Content-Length": str(len(content)),
            "Cache-Control": "no-store",
            "X-Content-Type-Options": "nosniff",
            "X-Frame-Options": "DENY",
            "Referrer-Policy": "no-referrer",
            "Cross-Origin-Resource-Policy": "same-origin",
        }
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:
        """Print nothing for a request."""


def serve(
    run: Path,
    targets: str,
    methods: Sequence[str] | None,
    protocols: Sequence[str],
    allow: Sequence[str],
    port: int,
    open_browser: bool,
    seed: int,
) -> int:
    """Serve a run's page until the command is stopped, and return the exit status.

    Args:
        run: The run directory, or a checkpoint in it.
        targets: The targets, as in `attree explain --targets`.
        methods: Names of attribution methods; None takes those of a fit.
        protocols: Names of reduction protocols.
        allow: Import paths of the user's classes that the run's config may use.
        port: Port to listen on; 0 takes a free one.
        open_browser: Open the page in the browser.
        seed: Seed of random targets and scores.
    """
    if allow:
        search_working_folder()
    with run_server(run, targets, methods, protocols, allow, port, seed) as server:
        console = plain_console(soft_wrap=True)
        console.print(f"Page: {server.address}\nOnly this computer can open it. Press Ctrl-C to stop.")
        if open_browser:
            webbrowser.open(server.address)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            console.print("Stopped.")
    return 0


def run_server(
    run: Path,
    targets: str,
    methods: Sequence[str] | None,
    protocols: Sequence[str],
    allow: Sequence[str] = (),
    port: int = 0,
    seed: int = 0,
) -> PageServer:
    """Return the server of a run's page. The arguments are those of `serve`."""
    loaded, explained = open_targets(run, targets, methods, protocols, allow, seed)
    summary = evaluate_targets(loaded, explained, seed)
    live = LiveModel(explained.subject, summary.evaluation)
    return PageServer(page_html(summary.page(is_live=True)), live.answer, port)
