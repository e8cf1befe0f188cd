"""The live page's server among bad connections: dropped, half-open, too many, too long, or not HTTP at all."""

from __future__ import annotations

import json
import math
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic, sleep
from typing import Any

import pytest

from attree.serve.page_server import MAX_REQUEST_BYTES, PageServer

PAGE = "x" * 3_000_000
"""More than a socket's buffers hold, so that sending it to a client that left fails."""


@contextmanager
def serving(answer: Callable[[Any], dict[str, Any]] = dict, **options: Any) -> Iterator[PageServer]:
    with PageServer(PAGE, answer, **options) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def connect(server: PageServer) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.server_port), timeout=60)


def read_all(connection: socket.socket) -> bytes:
    parts = []
    while part := connection.recv(1 << 16):
        parts.append(part)
    return b"".join(parts)


def request(server: PageServer, head: str, body: bytes = b"", headers: str = "") -> tuple[int, bytes]:
    """Send a request as bytes, and return status and body; nothing is corrected as `http.client` would."""
    with connect(server) as connection:
        host = f"Host: 127.0.0.1:{server.server_port}\r\n"
        connection.sendall(f"{head} HTTP/1.1\r\n{host}{headers}\r\n".encode("latin-1") + body)
        answer = read_all(connection)
    start, _, content = answer.partition(b"\r\n\r\n")
    return int(start.split()[1]), content


def wait_until(condition: Callable[[], bool], seconds: float = 120.0) -> None:
    end = monotonic() + seconds
    while not condition():
        assert monotonic() < end, "it did not happen"
        sleep(0.01)


def handler_threads() -> int:
    return sum("process_request_thread" in thread.name for thread in threading.enumerate())


def test_a_dropped_connection_is_no_event(capfd: pytest.CaptureFixture[str]) -> None:
    asked = threading.Event()
    gone = threading.Event()

    def answer(query: Any) -> dict[str, Any]:
        asked.set()
        assert gone.wait(60)
        return {"text": PAGE}

    with serving(answer) as server:
        for head, body in (("GET /", b""), ("POST /what_if", b"{}")):
            connection = connect(server)
            # Closed with a reset: what the server sends next fails.
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00")
            headers = f"Host: 127.0.0.1:{server.server_port}\r\nContent-Type: application/json\r\n"
            connection.sendall(f"{head} HTTP/1.1\r\n{headers}Content-Length: {len(body)}\r\n\r\n".encode() + body)
            if body:
                assert asked.wait(60)
            else:
                connection.recv(1)
            connection.close()
        gone.set()
        wait_until(lambda: handler_threads() == 0)
        assert request(server, "GET /")[0] == 200
    assert capfd.readouterr().err == ""


def test_errors_of_the_server_itself_are_still_shown(capfd: pytest.CaptureFixture[str]) -> None:
    with serving(lambda query: {"value": object()}) as server:
        headers = "Content-Type: application/json\r\nContent-Length: 2\r\n"
        with pytest.raises(IndexError):  # no answer
            request(server, "POST /what_if", b"{}", headers)
    assert "TypeError" in capfd.readouterr().err


@pytest.mark.parametrize("sent", [b"", b"GET / HT", b"POST /what_if HTTP/1.1\r\nContent-Le"])
def test_half_open_connections_are_closed(sent: bytes, capfd: pytest.CaptureFixture[str]) -> None:
    with serving(seconds=0.2) as server:
        with connect(server) as connection:
            connection.sendall(sent)
            assert read_all(connection) == b""  # it ends, although this side keeps the connection open
        wait_until(lambda: handler_threads() == 0)
    assert capfd.readouterr().err == ""


def test_a_body_that_never_comes_is_not_waited_for() -> None:
    with serving(seconds=0.2) as server:
        headers = "Content-Type: application/json\r\nContent-Length: 100\r\n"
        with connect(server) as connection:
            start = f"POST /what_if HTTP/1.1\r\nHost: 127.0.0.1:{server.server_port}\r\n{headers}\r\n{{"
            connection.sendall(start.encode())
            assert read_all(connection) == b""
        wait_until(lambda: handler_threads() == 0)


def test_connections_beyond_the_limit_are_refused_and_later_ones_served() -> None:
    with serving(connections=8) as server:
        idle = [connect(server) for _ in range(8)]
        wait_until(lambda: handler_threads() == 8)
        with connect(server) as connection:
            assert b"503" in read_all(connection).partition(b"\r\n")[0]
        assert handler_threads() == 8
        for connection in idle:
            connection.close()
        wait_until(lambda: handler_threads() == 0)
        assert request(server, "GET /")[0] == 200


@pytest.mark.parametrize(
    "length", ["\xb2", "9" * 5000, "-1", "1e3", " ", "", str(MAX_REQUEST_BYTES + 1), "0x10", "1_0", "+2"]
)
def test_lengths_that_are_none_or_too_large_are_refused_before_the_body_is_read(
    length: str, capfd: pytest.CaptureFixture[str]
) -> None:
    headers = f"Content-Type: application/json\r\nContent-Length: {length}\r\n"
    with serving() as server:
        status, body = request(server, "POST /what_if", headers=headers)  # no body: reading it would wait
    assert status == 400
    assert f"at most {MAX_REQUEST_BYTES:,} bytes" in json.loads(body)["error"]
    assert capfd.readouterr().err == ""


def test_the_longest_body_is_read_whole() -> None:
    sizes = []
    with serving(lambda query: sizes.append(len(query["text"])) or {}) as server:  # type: ignore[func-returns-value]
        frame = len(json.dumps({"text": ""}))
        body = json.dumps({"text": "x" * (MAX_REQUEST_BYTES - frame)}).encode()
        headers = f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        assert request(server, "POST /what_if", body, headers)[0] == 200
    assert sizes == [MAX_REQUEST_BYTES - frame]


def test_answers_are_json_also_where_the_model_gives_nan() -> None:
    with serving(lambda query: {"now": [math.nan, 1.0], "value": math.inf}) as server:
        headers = "Content-Type: application/json\r\nContent-Length: 2\r\n"
        status, body = request(server, "POST /what_if", b"{}", headers)
    assert status == 200
    assert json.loads(body, parse_constant=lambda name: pytest.fail(name)) == {"now": [None, 1.0], "value": None}
