"""Polling the runs of a folder: only appended lines are read.

Directories may come from somebody else. A run that cannot be read, whatever is wrong with it, has a row that says so,
and changes nothing for the others.
"""

import threading
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from tacit.core import Report
from tacit.core.texts import word
from tacit.errors import TacitError, one_line
from tacit.report.chart_data import run_charts
from tacit.report.run_data import RunData, find_runs
from tacit.runs.directory import MANIFEST, RoundsReader, read_manifest

SECONDS_BETWEEN_LOOKS = 0.5
SECONDS_BETWEEN_SEARCHES = 2.0  # for new runs
MAX_METRICS = 100  # of a run
MAX_NUMBER = 1e300


@dataclass(frozen=True, eq=False)
class Watched:
    """The part of a run that was read, None if there is none, and its row of the table: finite numbers and lines."""

    run: RunData | None
    summary: dict[str, object]

    @property
    def charts(self) -> list[dict[str, object]]:
        if self.run is None:
            return []
        return [{"title": chart.title, **chart.spec()} for chart in run_charts(self.run.reports, self.run.budget)]


class RunWatcher:
    """Polls the runs of a folder, and reads only what was appended to them.

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
            watched = reader.read()
            if watched is not None:
                self._publish(name, watched)
        if not self.searched:
            with self.news:
                self.searched = True
                self._announce()

    def watch(self) -> None:
        """Poll until `close`."""
        while not self.closed:
            with suppress(OSError):  # a folder that is removed, or may not be listed
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
        """The rows that changed after version `known`, all names, and the current version."""
        with self.news:
            rows = {name: self._runs[name].summary for name, at in self._changed.items() if at > known}
            return {"version": self.version, "names": [*self._runs], "runs": rows, "complete": self.searched}

    def wait(self, known: int, seconds: float) -> bool:
        """Wait for a version after `known`; False if there was none in time."""
        with self.news:
            return self.news.wait_for(lambda: self.closed or self.version > known, seconds) and not self.closed

    def _search(self) -> None:
        paths = {_name(path, self.folder): path for path in find_runs(self.folder)}
        self._readers = {name: self._readers.get(name) or _RunReader(path, name) for name, path in paths.items()}
        with self.news:
            removed = self._runs.keys() - paths.keys()
            for name in removed:
                del self._runs[name], self._changed[name]
            if removed:
                self._announce()
        self._last_search = time.monotonic()

    def _publish(self, name: str, run: Watched) -> None:
        with self.news:
            self._announce()
            self._runs[name], self._changed[name] = run, self.version

    def _announce(self) -> None:
        """Announce a new version; the caller holds the lock of `news`."""
        self.version += 1
        self.news.notify_all()


class _RunReader:
    """One run: reads its manifest when the file changes, and only its new rounds."""

    def __init__(self, path: Path, name: str) -> None:
        self._path, self._name, self._rounds = path, name, RoundsReader(path)
        self._stamp: object = None
        self._watched: Watched | None = None
        self._reports: tuple[Report, ...] = ()

    def read(self) -> Watched | None:
        """The run if anything is new; an unreadable file is reported as such."""
        try:
            return self._read()
        except Exception as error:  # of whatever a file can cause
            problem = one_line(error) if isinstance(error, TacitError | OSError) else f"{type(error).__name__}."
            before = _unread(self._name) if self._watched is None else self._watched
            if before.summary.get("problem") == problem:
                return None
            self._watched = replace(before, summary={**before.summary, "problem": problem})
            return self._watched

    def _read(self) -> Watched | None:
        stat = (self._path / MANIFEST).stat()
        stamp = (stat.st_mtime_ns, stat.st_size, stat.st_ino)
        changed = stamp != self._stamp
        again, new = self._rounds.read()
        if not (changed or again or new):
            return None
        self._reports = (*(() if again else self._reports), *new)
        before = None if self._watched is None else self._watched.run
        if changed or before is None:
            manifest = read_manifest(self._path)
            run = RunData(path=self._path, manifest=manifest, reports=self._reports, method=manifest.method.read())
        else:
            run = replace(before, reports=self._reports)
        self._stamp = stamp
        self._watched = Watched(run, _summary(self._name, run))
        return self._watched


def _unread(name: str) -> Watched:
    """A run of which nothing could be read."""
    row: dict[str, object] = dict.fromkeys(("method", "task", "status"), "")
    row |= dict.fromkeys(("seed", "planned", "epsilon", "unit", "up", "down", "seconds"))
    return Watched(None, {**row, "run": name, "rounds": 0, "metrics": {}})


def _name(path: Path, folder: Path) -> str:
    return one_line(path.relative_to(folder) if path != folder else path.name or path)


def _summary(name: str, run: RunData) -> dict[str, object]:
    """The row of a run in the table."""
    manifest, reports = run.manifest, run.reports
    metrics = next((report.metrics for report in reversed(reports) if report.metrics), {})
    row = {
        "run": name,
        "method": manifest.method.name,
        "task": manifest.task.name,
        "seed": manifest.seed,
        "status": manifest.status,
        "rounds": len(reports),
        "planned": run.rounds_planned,
        "metrics": {word(name): float(f"{value:.6g}") for name, value in [*metrics.items()][:MAX_METRICS]},
        "epsilon": run.epsilon,
        "unit": run.unit if reports else None,
        "up": sum(sum(report.up) for report in reports),
        "down": sum(sum(report.down) for report in reports),
        "seconds": run.seconds,
    }
    return {name: _finite(value) for name, value in row.items()}


def _finite(value: object) -> object:
    """A value of a row as JSON has it; None in place of numbers that are not finite, or that no page could show."""
    match value:
        case str():
            return one_line(value)
        case dict():
            return {name: each for name, each in value.items() if _finite(each) is not None}
        case int() | float() if not -MAX_NUMBER < value < MAX_NUMBER:
            return None
    return value
