"""Rounds for the programs with which people follow training: TensorBoard, MLflow and others.

A log gets what `tacit export --to csv` writes, no more: figures of every round, never who took part, and not the norms
of messages, which no noise hides. A log is written beside the run and never decides about it: one that fails is left
out with a warning, and `tacit export` writes what is missing. What a log has already is not written again, so that a
run that is resumed appends to it.
"""

import csv
import io
import secrets
import warnings
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Protocol, Self, runtime_checkable

from tacit.core import Report
from tacit.core.texts import cell, word
from tacit.errors import expect, one_line
from tacit.runs.directory import read_manifest
from tacit.runs.manifest import Manifest
from tacit.runs.run import Run

MAX_PARAMETER = 400  # characters


@dataclass(frozen=True, kw_only=True)
class LogHeader:
    """What a log knows about a run beside its rounds.

    Attributes:
        name: how the run is listed.
        identity: the same for the same run in the same directory, and for no other.
        directory: the run's directory; None: it has none.
        parameters: method, task, seed and the method's arguments; not the task's, which may name files.
        caveat: the warning that every output of the run carries; empty: none.
    """

    name: str
    identity: str
    directory: Path | None = None
    parameters: Mapping[str, str] = field(default_factory=dict)
    caveat: str = ""

    @classmethod
    def of(cls, manifest: Manifest, directory: Path | None) -> Self:
        """The header of the run in a directory, or of one without files."""
        method, task = manifest.method, manifest.task
        parameters = {
            "method": method.name,
            "task": task.name,
            "seed": manifest.seed,
            "randomness": manifest.randomness,
        }
        parameters |= {f"method.{key}": value for key, value in (method.args or {}).items()}
        location = secrets.token_hex() if directory is None else str(directory.resolve())
        return cls(
            name=word(f"{method.name}-{task.name}-{manifest.seed}" if directory is None else directory.resolve().name),
            identity=blake2b(f"{manifest.run} {location}".encode(), digest_size=16).hexdigest(),
            directory=directory,
            parameters={word(key): one_line(value, MAX_PARAMETER) for key, value in parameters.items()},
            caveat=one_line(manifest.caveat),
        )


class RoundWriter(Protocol):
    """A log of one run that is open for writing."""

    def write(self, reports: Sequence[Report]) -> None:
        """Write those of these rounds that the log does not have yet."""

    def finish(self, guarantee: str) -> None:
        """The run has ended: write what is proved about privacy."""

    def close(self) -> None:
        """Close the log; nothing is written after this."""


@runtime_checkable
class RoundLog(Protocol):
    """A log to which the rounds of a run are written.

    Attributes:
        label: its name in messages.
        option: its name for `tacit run --log` and `tacit export --to`; empty: it has none.
    """

    @property
    def label(self) -> str: ...

    @property
    def option(self) -> str: ...

    def validate(self, directory: Path | None) -> None:
        """Raise `UserError` if runs of this directory cannot be logged; called before any training."""

    def open(self, header: LogHeader) -> RoundWriter:
        """The log of a run, which may have rounds from before."""


def columns(report: Report) -> dict[str, float | None]:
    """The figures of a round that may be published where ε may: how many took part, but not who."""
    turnout = report.turnout
    return {
        "cohort": turnout.cohort,
        "delivered": turnout.delivered,
        "up": sum(report.up),
        "down": sum(report.down),
        **{f"epsilon_{unit}": epsilon for unit, epsilon in report.epsilons.items()},
        "leakage": report.leakage,
        "seconds": report.seconds,
    }


def rounds_csv(reports: Sequence[Report], caveat: str = "") -> bytes:
    """One line per round: how many took part, but not who, and not the norms of messages, which no noise hides."""
    metrics = dict.fromkeys(name for report in reports for name in report.metrics)
    parts = dict.fromkeys(name for report in reports for name in report.timings)
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    epsilons = dict.fromkeys(f"epsilon_{unit}" for report in reports for unit in report.epsilons)
    names = ["cohort", "delivered", "up", "down", *epsilons, "leakage", "seconds"]
    titles = ["round", *names, *metrics, *(f"seconds_{name}" for name in parts), *["caveat"] * bool(caveat)]
    table.writerow(cell(word(each)) for each in titles)
    for report in reports:
        values = columns(report)
        figures = [*map(values.get, names), *map(report.metrics.get, metrics), *map(report.timings.get, parts)]
        table.writerow(
            [report.round, *("" if each is None else each for each in figures), *filter(None, [cell(one_line(caveat))])]
        )
    return text.getvalue().encode()


_GROUPS = {"cohort": "clients", "delivered": "clients", "up": "bytes", "down": "bytes", "seconds": "time"}


def scalars(report: Report) -> dict[str, float]:
    """The figures of a round by the names that they have in a log.

    Example:
        >>> report = Report(1, (0, 1), (), (10, 10), (20, 20), None, None, None, {"loss": 2.0}, 0.5)
        >>> list(scalars(report))
        ['clients/cohort', 'clients/delivered', 'bytes/up', 'bytes/down', 'time/seconds', 'metrics/loss']
    """
    figures = {name: value for name, value in columns(report).items() if value is not None}
    return {
        **{f"{_GROUPS.get(name, 'privacy')}/{name}": value for name, value in figures.items()},
        **{f"metrics/{word(name)}": value for name, value in report.metrics.items()},
        **{f"time/{word(name)}": value for name, value in report.timings.items()},
    }


def log_rounds(steps: Generator[Run], logs: Sequence[RoundLog], directory: Path | None) -> Generator[Run]:
    """The same steps of a run, with every round written to these logs.

    Raises:
        UserError: a log cannot be written; nothing was trained.
    """
    for log in logs:
        expect(isinstance(log, RoundLog), f"a log such as tacit.TensorBoardLog(), got {log!r}")
        log.validate(directory)
    followers = [_Follower(log) for log in logs]
    return _follow(steps, followers) if followers else steps


def _follow(steps: Generator[Run], followers: "Sequence[_Follower]") -> Generator[Run]:
    latest: Run | None = None
    with closing(steps):
        try:
            for latest in steps:
                for follower in followers:
                    follower.follow(latest)
                yield latest
            for follower in followers:
                follower.finish(latest)
        finally:
            for follower in followers:
                follower.close()


class _Follower:
    """One log of one run; a failure is a warning, and ends only the log."""

    def __init__(self, log: RoundLog) -> None:
        self._log, self._seen, self._failed = log, 0, False
        self._writer: RoundWriter | None = None

    def follow(self, run: Run) -> None:
        """Write the rounds since the last call. Before the first round there is nothing to write, nor to remove."""
        new = run.history[self._seen :]
        if new and not self._failed:
            with self._attempt(run):
                if self._writer is None:  # with the key that the run's directory names
                    manifest = run.spec.manifest if run.directory is None else read_manifest(run.directory)
                    self._writer = self._log.open(LogHeader.of(manifest, run.directory))
                self._writer.write(new)
        self._seen = len(run.history)

    def finish(self, run: Run | None) -> None:
        """Write what is proved about privacy."""
        if run is not None and self._writer is not None and not self._failed:
            with self._attempt(run):
                self._writer.finish("\n\n".join(map(str, run.guarantees.values())))

    def close(self) -> None:
        """Close the log, also after it failed."""
        if self._writer is not None:
            with self._attempt():
                self._writer.close()
        self._writer = None

    @contextmanager
    def _attempt(self, run: Run | None = None) -> Iterator[None]:
        """Inside this block an exception of any library, on any disk or network, ends the log, and the run goes on."""
        try:
            yield
        except Exception as error:
            text = one_line(next(iter(str(error).splitlines()), ""))
            reason = f"{type(error).__name__}: {text}" if text else type(error).__name__
            if run is not None:
                self._warn(run, reason)
            elif not self._failed:
                warnings.warn(f"Closing the log for {self._log.label} failed ({reason}).", stacklevel=2)
            self._failed = True

    def _warn(self, run: Run, reason: str) -> None:
        later = f" Write what is missing with tacit export {run.directory} --to {self._log.option}."
        warnings.warn(
            f"Logging to {self._log.label} failed in round {run.state.round} ({reason}). The run goes on "
            f"without it.{later if self._log.option and run.directory is not None else ''}",
            stacklevel=2,
        )
