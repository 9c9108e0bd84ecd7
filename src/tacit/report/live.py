"""The live page: a read-only server on this machine that shows the runs of a folder while they train.

It listens on 127.0.0.1 only, and answers requests only if their Host header names that address, so that a page of
another origin cannot read it through a name that resolves here (DNS rebinding). The path of every address begins with a
secret, because other users of the machine can connect too, and run directories are private. A thread reads what runs
append to their files; requests are answered from what it has read.
"""

import json
import secrets
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from hmac import compare_digest
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import version
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tacit.core import Method, Report
from tacit.errors import TacitError
from tacit.report.chart_data import run_charts
from tacit.report.markup import element
from tacit.report.page import asset, run_page
from tacit.report.run_data import RunData, find_runs, known_method
from tacit.runs.directory import MANIFEST, RoundsReader, read_manifest
from tacit.runs.manifest import Manifest

HOST = "127.0.0.1"
SECONDS_BETWEEN_LOOKS = 0.5
SECONDS_BETWEEN_SEARCHES = 2.0  # for new runs
SECONDS_BETWEEN_SIGNS = 10.0  # of life, on a connection without news
MOST_LISTENERS = 32  # connections that wait for news
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


@dataclass(frozen=True, eq=False)
class Watched:
    """A run as far as it was read.

    Attributes:
        manifest: its manifest.
        method: its method; None if it is not known here.
        reports: its rounds so far.
        summary: its row of the table.
    """

    manifest: Manifest
    method: Method | None
    reports: tuple[Report, ...]
    summary: dict[str, object]

    @property
    def charts(self) -> list[dict[str, object]]:
        budget = None if self.method is None or self.method.budget is None else self.method.budget.epsilon
        return [{"title": chart.title, **chart.spec()} for chart in run_charts(self.reports, budget)]


class RunWatcher:
    """Reads the runs of a folder again and again, and what was appended to them only.

    Args:
        folder: where the runs are.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.news = threading.Condition()
        self.version = 0
        self.closed = False
        self.searched = False
        self._runs: dict[str, Watched] = {}
        self._changed: dict[str, int] = {}
        self._readers: dict[str, _RunReader] = {}
        self._last_search = -SECONDS_BETWEEN_SEARCHES

    def look(self) -> None:
        """Read what is new; every run is published as soon as it is read."""
        if time.monotonic() - self._last_search >= SECONDS_BETWEEN_SEARCHES:
            self._search()
        for name, reader in [*self._readers.items()]:
            if self.closed:
                return
            found = reader.read()
            if found is not None:
                self._publish(name, found)
        if not self.searched:
            self._mark_searched()

    def watch(self) -> None:
        """Look again and again until `close`."""
        while not self.closed:
            self.look()
            time.sleep(SECONDS_BETWEEN_LOOKS)

    def close(self) -> None:
        with self.news:
            self.closed = True
            self.news.notify_all()

    def run(self, name: str) -> Watched | None:
        with self.news:
            return self._runs.get(name)

    def since(self, known: int) -> dict[str, object]:
        """The rows that changed after version `known`, all names, and the version that this is."""
        with self.news:
            rows = {name: self._runs[name].summary for name, at in self._changed.items() if at > known}
            return {"version": self.version, "names": [*self._runs], "runs": rows, "complete": self.searched}

    def wait(self, known: int, seconds: float) -> bool:
        """Wait for a version after `known`; False if there was none in time."""
        with self.news:
            return self.news.wait_for(lambda: self.closed or self.version > known, seconds) and not self.closed

    def _search(self) -> None:
        found = {_name(path, self.folder): path for path in find_runs(self.folder)}
        self._readers = {name: self._readers.get(name) or _RunReader(path, name) for name, path in found.items()}
        with self.news:
            gone = self._runs.keys() - found.keys()
            for name in gone:
                del self._runs[name], self._changed[name]
            if gone:
                self.version += 1
                self.news.notify_all()
        self._last_search = time.monotonic()

    def _mark_searched(self) -> None:
        with self.news:
            self.searched = True
            self.version += 1
            self.news.notify_all()

    def _publish(self, name: str, found: Watched) -> None:
        with self.news:
            self.version += 1
            self._runs[name], self._changed[name] = found, self.version
            self.news.notify_all()


class _RunReader:
    """One run: its manifest is read when the file changed, its rounds where they end."""

    def __init__(self, path: Path, name: str) -> None:
        self._path, self._name, self._rounds = path, name, RoundsReader(path)
        self._stamp: object = None
        self._watched: Watched | None = None

    def read(self) -> Watched | None:
        """The run if anything is new; a file that cannot be read is shown as such."""
        try:
            return self._read()
        except (TacitError, OSError) as error:
            if self._watched is not None and self._watched.summary.get("problem") == str(error):
                return None
            return self._failed(str(error))

    def _read(self) -> Watched | None:
        stat = (self._path / MANIFEST).stat()
        stamp = (stat.st_mtime_ns, stat.st_size, stat.st_ino)
        changed = stamp != self._stamp
        again, new = self._rounds.read()
        if not (changed or again or new):
            return None
        before = self._watched
        if changed or before is None:
            manifest = read_manifest(self._path)
            method = known_method(manifest)
        else:
            manifest, method = before.manifest, before.method
        reports = (*(() if again or before is None else before.reports), *new)
        self._stamp = stamp
        self._watched = Watched(manifest, method, reports, _summary(self._name, manifest, method, reports))
        return self._watched

    def _failed(self, problem: str) -> Watched | None:
        if self._watched is None:
            return None
        self._watched = replace(self._watched, summary={**self._watched.summary, "problem": problem})
        return self._watched


def _name(path: Path, folder: Path) -> str:
    return str(path.relative_to(folder)) if path != folder else path.name or str(path)


def _summary(name: str, manifest: Manifest, method: Method | None, reports: tuple[Report, ...]) -> dict[str, object]:
    """The row of a run in the table."""
    metrics = next((report.metrics for report in reversed(reports) if report.metrics), {})
    last = reports[-1] if reports else None
    return {
        "run": name,
        "method": manifest.method.name,
        "task": manifest.task.name,
        "seed": manifest.seed,
        "status": manifest.status,
        "rounds": len(reports),
        "planned": None if method is None else method.rounds,
        "metrics": {key: float(f"{value:.6g}") for key, value in metrics.items() if abs(value) < float("inf")},
        "epsilon": last.epsilon if last else None,
        "up": sum(sum(report.up) for report in reports),
        "down": sum(sum(report.down) for report in reports),
        "seconds": sum(report.seconds for report in reports),
    }


class LiveServer(ThreadingHTTPServer):
    """Serves the page of a watcher; every connection has a thread of its own."""

    daemon_threads = True

    def __init__(self, watcher: RunWatcher, port: int = 0) -> None:
        self.watcher = watcher
        self.secret = secrets.token_urlsafe(24)
        self.listeners = threading.BoundedSemaphore(MOST_LISTENERS)
        ThreadingHTTPServer.__init__(self, (HOST, port), _Handler)

    @property
    def address(self) -> str:
        return f"http://{HOST}:{self.server_port}/{self.secret}/"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A reader that closed its connection is no error."""
        if not isinstance(sys.exc_info()[1], ConnectionError | TimeoutError):
            ThreadingHTTPServer.handle_error(self, request, client_address)


class _Handler(BaseHTTPRequestHandler):
    server: LiveServer
    protocol_version = "HTTP/1.1"
    timeout = 60  # seconds

    def version_string(self) -> str:
        return "tacit"

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002, a name of http.server
        """Requests are not logged."""

    def do_GET(self) -> None:
        if self.headers.get("Host") not in (
            f"{HOST}:{self.server.server_port}",
            f"localhost:{self.server.server_port}",
        ):
            self._refuse(HTTPStatus.MISDIRECTED_REQUEST, "This server answers only to its own address.")
            return
        parts = urlsplit(self.path)
        secret, _, page = parts.path.removeprefix("/").partition("/")
        pages: dict[str, Callable[[str], None]] = {
            "": self._front,
            "events": self._events,
            "charts": self._charts,
            "report": self._report,
        }
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
        found = self._chosen(query)
        if found is not None:
            self._send(json.dumps(found.charts, allow_nan=False), "application/json")

    def _report(self, query: str) -> None:
        """The page of a run, with its own stricter policy."""
        found = self._chosen(query)
        if found is None:
            return
        try:
            page = run_page(RunData.read(self._path(found)))
        except TacitError as error:
            self._refuse(HTTPStatus.INTERNAL_SERVER_ERROR, str(error))
            return
        self._send(page, "text/html", policy="frame-ancestors 'none'")

    def _chosen(self, query: str) -> Watched | None:
        """The run of a query; only names that the watcher has found are known."""
        name = parse_qs(query).get("run", [""])[0]
        found = self.server.watcher.run(name)
        if found is None:
            self._refuse(HTTPStatus.NOT_FOUND, "There is no such run.")
        return found

    def _path(self, found: Watched) -> Path:
        folder, name = self.server.watcher.folder, str(found.summary["run"])
        return folder if (folder / MANIFEST).is_file() else folder / name

    def _events(self, _: str) -> None:
        """Rows as they change, as server-sent events."""
        if not self.server.listeners.acquire(blocking=False):
            self._refuse(HTTPStatus.SERVICE_UNAVAILABLE, "Too many pages are open. Close one.")
            return
        try:
            self._head("text/event-stream", None)
            for event in self._news():
                self.wfile.write(event)
                self.wfile.flush()
        except OSError:
            pass  # the page was closed
        finally:
            self.server.listeners.release()
            self.close_connection = True

    def _news(self) -> Iterator[bytes]:
        watcher, known = self.server.watcher, -1
        while not watcher.closed:
            if watcher.version > known:
                news = watcher.since(known)
                known = int(str(news["version"]))
                yield f"data: {json.dumps(news, allow_nan=False, default=str)}\n\n".encode()
                time.sleep(0.1)  # many runs that change together become one event
            elif not watcher.wait(known, SECONDS_BETWEEN_SIGNS):
                yield b": still here\n\n"

    def _send(self, text: str, kind: str, *, policy: str = POLICY) -> None:
        content = text.encode()
        self._head(f"{kind}; charset=utf-8", len(content), policy=policy)
        self.wfile.write(content)

    def _refuse(self, status: HTTPStatus, sentence: str) -> None:
        content = f"{sentence}\n".encode()
        self._head("text/plain; charset=utf-8", len(content), status)
        self.wfile.write(content)

    def _head(self, kind: str, length: int | None, status: HTTPStatus = HTTPStatus.OK, *, policy: str = POLICY) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Security-Policy", policy)
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Referrer-Policy", "no-referrer")
        self.send_header("Cross-Origin-Resource-Policy", "same-origin")
        self.send_header("Cache-Control", "no-store")
        if length is not None:
            self.send_header("Content-Length", str(length))
        else:
            self.send_header("Connection", "close")
        self.end_headers()


def front_page(folder: Path) -> str:
    """The page with the table; its rows come as events."""
    search = element(
        "label",
        "Show runs that contain",
        element("input", type="search", id="filter", autocomplete="off", spellcheck="false"),
    )
    state = element("p", "Connecting…", id="state", role="status")
    table = element(
        "div",
        element(
            "table",
            element("caption", "Runs", class_="unseen"),
            element("thead", element("tr", id="columns")),
            element("tbody", "", id="rows"),
        ),
        class_="scroll",
        tabindex="0",
        role="group",
        aria_label="Runs",
    )
    chosen = element("section", "", id="chosen", aria_live="polite", aria_label="The chosen run")
    top = element(
        "div", element("p", "Tacit, live", class_="eyebrow"), element("h1", f"Runs in {folder}"),
        element("p", "This page is read-only and served on this machine only.", class_="sub"),
    )  # fmt: skip
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("title", f"Runs in {folder}"),
        *(element("link", rel="stylesheet", href=name) for name in ("uplot.min.css", "page.css")),
    )
    scripts = [element("script", "", src=name) for name in ("uplot.min.js", "charts.js", "live.js")]
    body = element(
        "body",
        element("header", top, class_="top"),
        element("main", element("div", search, state, class_="tools"), table, chosen),
        element("footer", f"Tacit {version('tacit')}"),
        *scripts,
    )
    return f"<!DOCTYPE html>\n{element('html', head, body, lang='en')}\n"
