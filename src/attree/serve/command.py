"""The command `attree serve`: show a finished run's page with its live model, in the browser on this computer."""

from __future__ import annotations

import json
import webbrowser
from collections.abc import Callable, Mapping, Sequence
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from attree.attribution import make_methods
from attree.errors import ArgumentError, AttreeError
from attree.explain_run.command import evaluate_targets
from attree.explain_run.explained import find_targets
from attree.explain_run.targets import ExplainRequest
from attree.faithfulness import resolve_protocols
from attree.io.console import plain_console
from attree.report.page.live import LiveModel
from attree.report.page.write import page_html
from attree.runs.classes import search_working_folder
from attree.runs.load_run import load_run

ADDRESS = "127.0.0.1"
MAX_REQUEST_BYTES = 1 << 20

Answer = Callable[[Mapping[str, Any]], dict[str, Any]]
"""Answers a question of the page. Raises an `AttreeError` if the question is wrong."""


def serve(
    run: Path,
    targets: str,
    methods: Sequence[str],
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
        methods: Names of attribution methods.
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
    methods: Sequence[str],
    protocols: Sequence[str],
    allow: Sequence[str] = (),
    port: int = 0,
    seed: int = 0,
) -> PageServer:
    """Return the server of a run's page. The arguments are those of `serve`."""
    made, loaded = make_methods(methods, seed=seed), load_run(run, allow=allow)
    request = ExplainRequest(targets, seed, made, resolve_protocols(protocols, loaded.net))
    explained = find_targets(loaded, request)
    summary = evaluate_targets(loaded, explained, seed)
    live = LiveModel(explained.subject, summary.evaluation)
    return PageServer(page_html(summary.page(is_live=True)), live.answer, port)


class PageServer(ThreadingHTTPServer):
    """Serves a page at `/` and answers queries at `/what_if`. It serves nothing else, and opens no files.

    Requests under another host name (DNS rebinding) and posts from another origin are refused.

    Args:
        page: The page as HTML.
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
        except (OSError, OverflowError) as error:  # in use, not allowed, or no port number
            raise ArgumentError(
                f"Expected argument `port` to be a free port, or 0, but got {port}: {error}."
            ) from error

    @property
    def address(self) -> str:
        """URL of the page."""
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
        """Answer a POST request to `/what_if`; refuse other paths, and bodies that are too long or not JSON."""
        if not self._is_allowed():
            return
        length = self.headers.get("Content-Length", "")
        is_json = self.headers.get_content_type() == "application/json"
        if self.path != "/what_if":
            self._send(HTTPStatus.NOT_FOUND, {"error": "There is nothing here."})
        elif not is_json or not length.isdigit() or int(length) > MAX_REQUEST_BYTES:
            self.close_connection = True  # the body is not read
            self._send(HTTPStatus.BAD_REQUEST, {"error": f"Expected JSON of at most {MAX_REQUEST_BYTES:,} bytes."})
        else:
            self._send(*self._answer(self.rfile.read(int(length))))

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
        own = self.server.is_own(self.headers.get("Host"))
        if own and (origin is None or self.server.is_own(origin.removeprefix("http://"))):
            return True
        self.close_connection = True
        self._send(HTTPStatus.FORBIDDEN, {"error": "Only the browser on the same computer can open this page."})
        return False

    def _send(self, status: HTTPStatus, content: dict[str, Any]) -> None:
        self._send_bytes(status, json.dumps(content).encode("utf-8"), "application/json")

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
