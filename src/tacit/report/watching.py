"""Polling the runs of a folder: of each, only what was appended is read."""

import threading
import time
from dataclasses import dataclass, replace
from pathlib import Path

from tacit.errors import TacitError
from tacit.report.chart_data import run_charts
from tacit.report.run_data import RunData, find_runs
from tacit.runs.directory import MANIFEST, RoundsReader, read_manifest

SECONDS_BETWEEN_LOOKS = 0.5
SECONDS_BETWEEN_SEARCHES = 2.0  # for new runs


@dataclass(frozen=True, eq=False)
class Watched:
    """A run as far as it was read, and its row of the table."""

    run: RunData
    summary: dict[str, object]

    @property
    def charts(self) -> list[dict[str, object]]:
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

    def _publish(self, name: str, found: Watched) -> None:
        with self.news:
            self._announce()
            self._runs[name], self._changed[name] = found, self.version

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

    def read(self) -> Watched | None:
        """The run if anything is new; an unreadable file is reported as such."""
        try:
            return self._read()
        except (TacitError, OSError) as error:
            if self._watched is None or self._watched.summary.get("problem") == str(error):
                return None
            self._watched = replace(self._watched, summary={**self._watched.summary, "problem": str(error)})
            return self._watched

    def _read(self) -> Watched | None:
        stat = (self._path / MANIFEST).stat()
        stamp = (stat.st_mtime_ns, stat.st_size, stat.st_ino)
        changed = stamp != self._stamp
        again, new = self._rounds.read()
        if not (changed or again or new):
            return None
        before = None if self._watched is None else self._watched.run
        reports = (*(() if again or before is None else before.reports), *new)
        if changed or before is None:
            manifest = read_manifest(self._path)
            run = RunData(path=self._path, manifest=manifest, reports=reports, method=manifest.method.read())
        else:
            run = replace(before, reports=reports)
        self._stamp = stamp
        self._watched = Watched(run, _summary(self._name, run))
        return self._watched


def _name(path: Path, folder: Path) -> str:
    return str(path.relative_to(folder)) if path != folder else path.name or str(path)


def _summary(name: str, run: RunData) -> dict[str, object]:
    """The row of a run in the table."""
    manifest, reports = run.manifest, run.reports
    metrics = next((report.metrics for report in reversed(reports) if report.metrics), {})
    return {
        "run": name,
        "method": manifest.method.name,
        "task": manifest.task.name,
        "seed": manifest.seed,
        "status": manifest.status,
        "rounds": len(reports),
        "planned": run.rounds_planned,
        "metrics": {key: float(f"{value:.6g}") for key, value in metrics.items() if abs(value) < float("inf")},
        "epsilon": run.epsilon,
        "unit": run.unit if reports else None,
        "up": sum(sum(report.up) for report in reports),
        "down": sum(sum(report.down) for report in reports),
        "seconds": run.seconds,
    }
