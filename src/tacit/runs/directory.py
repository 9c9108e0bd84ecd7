"""What a run leaves behind, and how it goes on from there.

::

    manifest.json            what was run: versions, seed, method, task; and its status
    rounds.jsonl             one line per round
    checkpoint.safetensors   where to go on: the server's state, with a checksum over it
    model.safetensors        the trained model's named tensors, once the run is finished; of several models, each
                             name behind the model's number
    leakage.json             what each client has leaked, if that is how privacy is counted (d-privacy)
    ledger.db                what was spent of the privacy budget, if there is one and no shared ledger

The checkpoint is the truth. A kill may leave lines behind it, the last one torn; they are cut off when the run
goes on, and the rounds they told of are done again, with bitwise the same result.
"""

import fcntl
import json
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Self

import safetensors.torch
from torch import Tensor

from tacit.core import GridStep, Method, Report, State, Traffic, files
from tacit.errors import RunError
from tacit.privacy.leakage import LeakageAccounting
from tacit.runs import checkpoint
from tacit.runs.manifest import Manifest, Status

MANIFEST, ROUNDS, CHECKPOINT, MODEL = "manifest.json", "rounds.jsonl", "checkpoint.safetensors", "model.safetensors"
LEDGER, LEAKAGE = "ledger.db", "leakage.json"
SECONDS_BETWEEN_CHECKPOINTS = 5.0


class RunDirectory:
    """A run's directory while it is being written. Use `create` or `open`, and `close` when done.

    Attributes:
        path: where it is.
        manifest: what its manifest says.
        state: the state that was written last; None before the first checkpoint.
        history: the rounds up to the state that was found.
    """

    def __init__(self, path: Path, manifest: Manifest, made: Sequence[Path] | None = None) -> None:
        self.path, self.manifest, self._made = path, manifest, made
        self.state: State | None = None
        self.history: tuple[Report, ...] = ()
        self._written = time.monotonic()
        with files.storage_errors(path / ROUNDS):
            self._rounds = (path / ROUNDS).open("ab+")

    @classmethod
    def create(cls, path: Path, manifest: Manifest) -> Self:
        """A new directory with a manifest; one that holds anything is refused."""
        check_free(path)
        made = [place for place in (path, *path.parents) if not place.exists()]
        try:
            with files.storage_errors(path):
                path.mkdir(parents=True, exist_ok=True)
            files.write(path / MANIFEST, manifest.to_bytes())
            return cls(path, manifest, made)._locked()
        except BaseException:
            _remove(path, made)
            raise

    @classmethod
    def open(cls, path: Path) -> Self:
        """A directory that an earlier run left, made ready to go on."""
        manifest = read_manifest(path)
        manifest.check_versions(path)
        directory = cls(path, manifest)._locked()
        try:
            directory._rewind()
        except BaseException:
            directory.close()
            raise
        return directory

    def record(self, state: State, report: Report) -> None:
        """Note a round, and now and then where to go on from."""
        caveat = {"caveat": self.manifest.caveat} if self.manifest.caveat else {}
        line = json.dumps({**_plain(asdict(report)), **caveat}, allow_nan=False) + "\n"
        with files.storage_errors(self.path / ROUNDS):
            self._append(line.encode())
        if time.monotonic() - self._written >= SECONDS_BETWEEN_CHECKPOINTS:
            self.checkpoint(state)

    def checkpoint(self, state: State) -> None:
        """Write where to go on from; the rounds before it are brought to the disk first."""
        with files.storage_errors(self.path / ROUNDS):
            files.flush(self._rounds)
        checkpoint.write(self.path / CHECKPOINT, state, self.manifest.caveat)
        self.state, self._written = state, time.monotonic()

    def stop(self, state: State, status: Status, leakage: LeakageAccounting | None = None) -> None:
        """The run ends here, but may go on."""
        self.checkpoint(state)
        self._leaked(leakage)
        self._mark(status)

    def finish(self, state: State, model: Mapping[str, Tensor], leakage: LeakageAccounting | None = None) -> None:
        """The run is done: its last state, its model, what clients leaked, its status."""
        self.checkpoint(state)
        self._leaked(leakage)
        tensors = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in model.items()}
        label = {"caveat": self.manifest.caveat} if self.manifest.caveat else None
        files.write(self.path / MODEL, safetensors.torch.save(tensors, label))
        self._mark("finished")

    def ledger_for(self, method: Method) -> Path | None:
        """Where a run with a budget is charged unless told otherwise: a ledger of its own."""
        return None if method.budget is None else self.path / LEDGER

    def discard(self) -> None:
        """Take away what `create` made; what `open` found stays."""
        self.close()
        if self._made is not None:
            _remove(self.path, self._made)

    def close(self) -> None:
        """Let go of the files."""
        with suppress(OSError):
            self._rounds.close()

    def _leaked(self, leakage: LeakageAccounting | None) -> None:
        if leakage is not None:
            files.write(self.path / LEAKAGE, (json.dumps(leakage.to_json(), indent=2) + "\n").encode())

    def _mark(self, status: Status) -> None:
        self.manifest = replace(self.manifest, status=status)
        files.write(self.path / MANIFEST, self.manifest.to_bytes())

    def _append(self, line: bytes) -> None:
        """One line at the end, or nothing."""
        end = self._rounds.seek(0, os.SEEK_END)
        try:
            self._rounds.write(line)
            self._rounds.flush()
        except BaseException:
            with suppress(OSError):
                self._rounds.truncate(end)
            raise

    def _locked(self) -> Self:
        """Keep other processes out; the lock goes with this process, however it ends."""
        try:
            fcntl.lockf(self._rounds, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self.close()
            raise RunError(f"{self.path} is being written by another process. Wait for it, or stop it.") from None
        return self

    def _rewind(self) -> None:
        """Go back to the checkpoint: read the rounds before it, cut off what follows."""
        self.state = checkpoint.read(self.path / CHECKPOINT)
        self._rounds.seek(0)
        lines = [self._rounds.readline() for _ in range(self.state.round if self.state else 0)]
        self.history = _parse_lines(lines, self.path / ROUNDS)
        with files.storage_errors(self.path / ROUNDS):
            self._rounds.truncate(sum(map(len, lines)))
            for torn in filter(files.is_partial, self.path.iterdir()):
                torn.unlink()


def check_free(path: Path) -> None:
    """Raise `RunError` unless a new run can be put here."""
    if path.exists() and not path.is_dir():
        raise RunError(f"{path} is a file. Choose another directory with --out.")
    if path.exists() and any(not files.is_partial(place) for place in path.iterdir()):
        raise RunError(f"{path} is not empty. Go on with --resume {path}, or choose another --out.")


def read_manifest(path: Path) -> Manifest:
    """A run's manifest; `RunError` if there is none or it cannot be read."""
    file = path / MANIFEST
    try:
        return Manifest.from_bytes(file.read_bytes(), file)
    except FileNotFoundError:
        raise RunError(f"{path} holds no run: there is no {MANIFEST} in it.") from None
    except OSError as error:
        raise RunError(f"Could not read {file}: {error.strerror}.") from error


def read_rounds(path: Path) -> tuple[Report, ...]:
    """A run's rounds as far as they are written; a torn last line is left out."""
    try:
        lines = (path / ROUNDS).read_bytes().splitlines(keepends=True)
    except OSError as error:
        raise RunError(f"Could not read {path / ROUNDS}: {error.strerror}.") from error
    whole = lines[:-1] if lines and not lines[-1].endswith(b"\n") else lines
    return _parse_lines(whole, path / ROUNDS)


def _remove(path: Path, made: Iterable[Path]) -> None:
    """Remove a run's files, and of the directories made for it those that are empty."""
    with suppress(OSError):
        for name in (MANIFEST, ROUNDS, CHECKPOINT, MODEL, LEDGER, LEAKAGE):
            (path / name).unlink(missing_ok=True)
        for place in made:
            place.rmdir()


def _parse_lines(lines: list[bytes], file: Path) -> tuple[Report, ...]:
    reports = []
    for number, line in enumerate(lines, start=1):
        try:
            report = _to_report(json.loads(line))
        except (ValueError, KeyError, TypeError):
            raise RunError(f"Line {number} of {file} is missing or damaged. Start the run anew.") from None
        if report.round != number:
            raise RunError(f"Line {number} of {file} tells of round {report.round}. Start the run anew.")
        reports.append(report)
    return tuple(reports)


# Keys that earlier releases wrote, and what they are called now: their run directories still open.
_RENAMED = {"refused": "rejected", "parts": "timings", "phases": "overhead", "step": "grid_step", "longer": "inflation"}


def _to_report(line: dict[str, Any]) -> Report:
    row = {_RENAMED.get(key, key): value for key, value in line.items()}
    return Report(
        round=int(row["round"]),
        clients=tuple(map(int, row["clients"])),
        rejected=tuple(map(int, row["rejected"])),
        up=tuple(map(int, row["up"])),
        down=tuple(map(int, row["down"])),
        norm=float(row["norm"]),
        variance=float(row["variance"]),
        scale=float(row["scale"]),
        metrics={name: float(value) for name, value in row["metrics"].items()},
        seconds=float(row["seconds"]),
        epsilon=None if row["epsilon"] is None else float(row["epsilon"]),
        grid_step=None if row["grid_step"] is None else _to_grid_step(row["grid_step"]),
        timings={name: float(seconds) for name, seconds in row["timings"].items()},
        overhead={name: Traffic(int(taken["up"]), int(taken["down"])) for name, taken in row["overhead"].items()},
        declined=tuple(map(int, row["declined"])),
        leakage=None if row["leakage"] is None else float(row["leakage"]),
    )


def _to_grid_step(line: dict[str, Any]) -> GridStep:
    return GridStep(**{_RENAMED.get(key, key): float(value) for key, value in line.items()})


def _plain(table: Mapping[str, Any]) -> dict[str, Any]:
    """Numbers that JSON does not have become the strings that `float` reads."""
    return {key: _plain_value(value) for key, value in table.items()}


def _plain_value(value: Any) -> Any:
    if isinstance(value, float) and not abs(value) < float("inf"):
        return str(value)
    return _plain(value) if isinstance(value, Mapping) else value
