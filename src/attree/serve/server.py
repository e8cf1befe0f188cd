"""A server of one page and one question, for the browser on this computer and nobody else."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from attree.errors import ArgumentError, AttreeError

ADDRESS = "127.0.0.1"
MOST_BYTES = 1 << 20
"""The longest question."""

Answer = Callable[[Mapping[str, Any]], dict[str, Any]]
"""Gives the answer to a question; raises an `AttreeError` that says what is wrong with it."""


class PageServer(ThreadingHTTPServer):
    """Serves a page at `/` and answers questions at `/what_if`; there is nothing else, and no file is opened.

    Requests under another host name (DNS rebinding) and posts from another origin are refused.

    Args:
        page: The page, as HTML.
        answer: Answers a question.
        port: Port to listen on; 0 takes a free one.

    Raises:
        ArgumentError: The port is not free.
    """

    daemon_threads = True

    def __init__(self, page: str, answer: Answer, port: int = 0) -> None:
        self.page = page.encode("utf-8")
        self.answer = answer
        try:
            super().__init__((ADDRESS, port), _Handler)
        except (OSError, OverflowError) as error:  # in use, not allowed, or no port at all
            raise ArgumentError(
                f"Expected argument `port` to be a free port, or 0, but got {port}: {error}."
            ) from error

    @property
    def address(self) -> str:
        """What to open in a browser."""
        return f"http://{ADDRESS}:{self.server_port}/"

    def is_own(self, host: str | None) -> bool:
        """Whether a `Host` header names this server."""
        return host in {f"{name}:{self.server_port}" for name in (ADDRESS, "localhost")}


class _Handler(BaseHTTPRequestHandler):
    """Handles one request."""

    server: PageServer
    server_version = "attree"
    sys_version = ""

    def do_GET(self) -> None:
        if not self._is_allowed():
            return
        if self.path.partition("?")[0] != "/":
            self._send(HTTPStatus.NOT_FOUND, {"error": "There is nothing here."})
            return
        self._send_bytes(HTTPStatus.OK, self.server.page, "text/html; charset=utf-8")

    def do_POST(self) -> None:
        if not self._is_allowed():
            return
        length = self.headers.get("Content-Length", "")
        is_json = self.headers.get_content_type() == "application/json"
        if self.path != "/what_if":
            self._send(HTTPStatus.NOT_FOUND, {"error": "There is nothing here."})
        elif not is_json or not length.isdigit() or int(length) > MOST_BYTES:
            self.close_connection = True  # what was sent is not read
            self._send(HTTPStatus.BAD_REQUEST, {"error": f"Expected JSON of at most {MOST_BYTES:,} bytes."})
        else:
            self._send(*self._answer(self.rfile.read(int(length))))

    def _answer(self, body: bytes) -> tuple[HTTPStatus, dict[str, Any]]:
        try:
            return HTTPStatus.OK, self.server.answer(json.loads(body))
        except (AttreeError, ValueError, RecursionError) as error:
            return HTTPStatus.BAD_REQUEST, {"error": str(error)}
        except Exception as error:  # the model's own: said to the reader, the server goes on
            return HTTPStatus.INTERNAL_SERVER_ERROR, {"error": f"The model failed ({type(error).__name__}: {error})."}

    def _is_allowed(self) -> bool:
        origin = self.headers.get("Origin")
        own = self.server.is_own(self.headers.get("Host"))
        if own and (origin is None or self.server.is_own(origin.removeprefix("http://"))):
            return True
        self.close_connection = True
        self._send(HTTPStatus.FORBIDDEN, {"error": "This page is for the browser on its own computer."})
        return False

    def _send(self, status: HTTPStatus, content: dict[str, Any]) -> None:
        self._send_bytes(status, json.dumps(content).encode("utf-8"), "application/json")

    def _send_bytes(self, status: HTTPStatus, content: bytes, kind: str) -> None:
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
        """Say nothing: the terminal is for what the reader needs."""
