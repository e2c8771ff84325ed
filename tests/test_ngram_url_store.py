"""Files after URLs: servers that are slow, silent or never end are given up."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from draftsmith.engine.errors import InputUnreadable
from draftsmith.ngram.cluster import url_store
from draftsmith.ngram.cluster.url_store import UrlStore

Answer = Callable[[BaseHTTPRequestHandler], None]


@contextmanager
def served(answer: Answer, size: int | None, *, silent: bool = False) -> Iterator[str]:
    """The URL of a file of which a server says one thing and sends another."""
    over = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            if silent:
                over.wait(20)
            self.send_response(200)
            if size is not None:
                self.send_header("Content-Length", str(size))
            self.end_headers()

        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            try:
                while not over.is_set():
                    answer(self)
            except OSError:  # the reader has gone
                pass

        def log_message(self, *_: object) -> None:
            pass

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, *_: object) -> None:
            pass

    server = Server(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/a.txt"
    finally:
        over.set()
        server.shutdown()
        thread.join()
        server.server_close()


def read_all(url: str) -> int:
    n_bytes = 0
    with UrlStore().open(url) as file:
        while block := file.read(1 << 16):
            n_bytes += len(block)
    return n_bytes


def flood(handler: BaseHTTPRequestHandler) -> None:
    handler.wfile.write(b"words " * 5000)


def trickle(handler: BaseHTTPRequestHandler) -> None:
    handler.wfile.write(b"w")
    time.sleep(0.02)


def silence(handler: BaseHTTPRequestHandler) -> None:
    time.sleep(0.1)


@pytest.mark.parametrize("size", [100_000, None])
def test_stream_without_an_end(size: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """An address that streams for ever holds a worker for ever."""
    monkeypatch.setattr(url_store, "_MOST_UNTOLD", 200_000)
    with served(flood, size) as url, pytest.raises(InputUnreadable, match=r"more than the \d+"):
        read_all(url)


def test_slow_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """A byte now and then, so that no single read takes too long."""
    monkeypatch.setattr(url_store, "_SLOW_S", 0.5)
    with served(trickle, None) as url, pytest.raises(InputUnreadable, match=r"sent \d+ bytes in"):
        read_all(url)


def test_silent_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that accepts and says nothing, before its answer or after it."""
    monkeypatch.setattr(url_store, "_READ_S", 0.5)
    with served(silence, None) as url, pytest.raises(InputUnreadable, match="no answer within"):
        read_all(url)
    monkeypatch.setattr(url_store, "_OPEN_S", 0.5)
    with served(flood, 9, silent=True) as url, pytest.raises(InputUnreadable, match="no answer"):
        UrlStore().status(url)
