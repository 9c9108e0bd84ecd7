"""The live page: a read-only server on this machine that shows the runs of a folder while they train.

It listens on 127.0.0.1 only, and answers requests only if their Host header names that address, so that a page of
another origin cannot read it through a name that resolves here (DNS rebinding). The path of every address begins with a
secret, because other users of the machine can connect too, and run directories are private. A thread reads what runs
append to their files; requests are answered from memory.
"""

import json
import secrets
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from hmac import compare_digest
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from string import Template
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tacit import __version__
from tacit.core.texts import plain
from tacit.errors import TacitError
from tacit.report.markup import escape
from tacit.report.page import asset, run_page
from tacit.report.watching import RunWatcher, Watched
from tacit.runs import guarantee_file
from tacit.runs.directory import GUARANTEE

HOST = "127.0.0.1"
SECONDS_BETWEEN_SIGNS = 10.0  # of life, on an idle connection
MAX_LISTENERS = 32  # connections that wait for news
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'"
)
ASSETS = {
    "uplot.min.css": "text/css",
    "page.css": "text/css",
    "uplot.min.js": "text/javascript",
    "charts.js": "text/javascript",
    "live.js": "text/javascript",
}


class LiveServer(ThreadingHTTPServer):
    """Serves the page of a watcher; every connection has a thread of its own."""

    daemon_threads = True

    def __init__(self, watcher: RunWatcher, port: int = 0) -> None:
        self.watcher = watcher
        self.secret = secrets.token_urlsafe(24)
        self.listeners = threading.BoundedSemaphore(MAX_LISTENERS)
        ThreadingHTTPServer.__init__(self, (HOST, port), _Handler)

    @property
    def address(self) -> str:
        return f"http://{HOST}:{self.server_port}/{self.secret}/"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Report errors other than closed connections."""
        if not isinstance(sys.exc_info()[1], ConnectionError | TimeoutError):
            ThreadingHTTPServer.handle_error(self, request, client_address)


class _Handler(BaseHTTPRequestHandler):
    server: LiveServer
    protocol_version = "HTTP/1.1"
    timeout = 60  # seconds

    def version_string(self) -> str:
        return "tacit"

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002, a name of http.server
        """Do not log requests."""

    def do_GET(self) -> None:
        if self.headers.get("Host") not in (
            f"{HOST}:{self.server.server_port}",
            f"localhost:{self.server.server_port}",
        ):
            self._refuse(HTTPStatus.MISDIRECTED_REQUEST, "This server answers only to its own address.")
            return
        parts = urlsplit(self.path)
        secret, _, page = parts.path.removeprefix("/").partition("/")
        pages: dict[str, Callable[[str], None]]
        pages = {"": self._front, "events": self._events, "charts": self._charts, "report": self._report}
        if not compare_digest(secret.encode(), self.server.secret.encode()):
            self._refuse(HTTPStatus.FORBIDDEN, "Open the whole address that tacit watch printed.")
        elif page in ASSETS:
            self._send(asset(page), ASSETS[page])
        elif page in pages:
            pages[page](parts.query)
        else:
            self._refuse(HTTPStatus.NOT_FOUND, "There is no such page.")

    def _front(self, _: str) -> None:
        self._send(front_page(self.server.watcher.folder), "text/html")

    def _charts(self, query: str) -> None:
        watched = self._find_run(query)
        if watched is not None:
            with self._report_problems():
                self._send(json.dumps(plain(watched.charts)), "application/json")

    def _report(self, query: str) -> None:
        """The page of a run, with its own stricter policy."""
        watched = self._find_run(query)
        if watched is None:
            return
        if watched.run is None:
            self._refuse(HTTPStatus.INTERNAL_SERVER_ERROR, str(watched.summary["problem"]))
            return
        with self._report_problems():
            stored = guarantee_file.read(watched.run.path / GUARANTEE)
            self._send(run_page(replace(watched.run, stored=stored)), "text/html", policy="frame-ancestors 'none'")

    @contextmanager
    def _report_problems(self) -> Iterator[None]:
        """Inside this block, whatever the files of a run cause is reported for this run, to who asked for it."""
        try:
            yield
        except TacitError as error:
            self._refuse(HTTPStatus.INTERNAL_SERVER_ERROR, str(error))
        except (ArithmeticError, LookupError, MemoryError, RecursionError, TypeError, ValueError) as error:
            sentence = f"The files of this run cannot be shown: {type(error).__name__}."
            self._refuse(HTTPStatus.INTERNAL_SERVER_ERROR, sentence)

    def _find_run(self, query: str) -> Watched | None:
        """The run that a query names, if the watcher knows it."""
        name = parse_qs(query).get("run", [""])[0]
        watched = self.server.watcher.run(name)
        if watched is None:
            self._refuse(HTTPStatus.NOT_FOUND, "There is no such run.")
        return watched

    def _events(self, _: str) -> None:
        """Send changed rows as server-sent events."""
        if not self.server.listeners.acquire(blocking=False):
            self._refuse(HTTPStatus.SERVICE_UNAVAILABLE, "Too many pages are open. Close one.")
            return
        try:
            self._head("text/event-stream", ("Connection", "close"))
            for event in self._news():
                self.wfile.write(event)
                self.wfile.flush()
        except OSError:
            pass  # the page was closed
        finally:
            self.server.listeners.release()
            self.close_connection = True

    def _news(self) -> Iterator[bytes]:
        watcher, version = self.server.watcher, -1
        while not watcher.closed:
            if watcher.version > version:
                news = watcher.since(version)
                version = int(str(news["version"]))
                yield f"data: {json.dumps(news, allow_nan=False)}\n\n".encode()
                time.sleep(0.1)  # many runs that change together become one event
            elif not watcher.wait(version, SECONDS_BETWEEN_SIGNS):
                yield b": still here\n\n"

    def _refuse(self, status: HTTPStatus, sentence: str) -> None:
        self._send(f"{sentence}\n", "text/plain", status)

    def _send(self, text: str, kind: str, status: HTTPStatus = HTTPStatus.OK, policy: str = POLICY) -> None:
        content = text.encode()
        self._head(f"{kind}; charset=utf-8", ("Content-Length", str(len(content))), status, policy)
        self.wfile.write(content)

    def _head(self, kind: str, end: tuple[str, str], status: HTTPStatus = HTTPStatus.OK, policy: str = POLICY) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Security-Policy", policy)
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Referrer-Policy", "no-referrer")
        self.send_header("Cross-Origin-Resource-Policy", "same-origin")
        self.send_header("Cache-Control", "no-store")
        self.send_header(*end)
        self.end_headers()


def front_page(folder: Path) -> str:
    """The page with the table; its rows come as events."""
    return Template(asset("live.html")).substitute(folder=escape(folder), version=__version__)
