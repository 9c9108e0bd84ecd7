"""Reading the runs of a folder again and again, and of each only what was appended since."""

import threading
import time
from dataclasses import dataclass, replace
from pathlib import Path

from tacit.core import Method, Report
from tacit.errors import TacitError
from tacit.report.chart_data import run_charts
from tacit.report.run_data import charged_epsilon, charged_unit, find_runs, known_method
from tacit.runs.directory import MANIFEST, RoundsReader, read_manifest
from tacit.runs.manifest import Manifest

SECONDS_BETWEEN_LOOKS = 0.5
SECONDS_BETWEEN_SEARCHES = 2.0  # for new runs


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
        "epsilon": charged_epsilon(last) if last else None,
        "unit": charged_unit(last) if last else None,
        "up": sum(sum(report.up) for report in reports),
        "down": sum(sum(report.down) for report in reports),
        "seconds": sum(report.seconds for report in reports),
    }
