"""The directory of a run: its files, and how the run resumes from them.

::

    manifest.json            what was run: versions, seed, method, task; and its status
    encoding.json            how rows of the table became inputs and targets, if the task was made from one
    rounds.jsonl             one line per round
    rounds.csv               the figures of every round as a table, without who took part, once the run is finished
    checkpoint.safetensors   the server's state to resume from, with a checksum
    model.safetensors        the named tensors of the trained model, once the run is finished; of several models, each
                             name is prefixed with the model's number
    leakage.json             the leakage of each client (d-privacy only)
    guarantee.json           what is proved about privacy, once the run is finished
    ledger.db                the charges to the privacy budget, if there is one and no shared ledger
    ledger.db.head           its last row, which detects an older copy
    noise.key                the secret key from which the noise of the next rounds derives, readable by the owner only

The key moves forward with every checkpoint, so that keys of rounds before it are erased, and it is removed when the run
is finished: the directory of a finished run holds no key.

The checkpoint decides where a run resumes. A kill may leave later lines in rounds.jsonl, the last one incomplete; they
are removed on resuming, and their rounds are repeated with bitwise the same result.

The directory, those above it that are created for it, and all files in it are private to their user.
"""

import json
import os
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, Self

import safetensors.torch
from torch import Tensor

from tacit.core import Method, Report, State, files
from tacit.core.keys import Ratchet
from tacit.core.prices import Unit
from tacit.core.serialization import Source, read_json, write_json
from tacit.data import Encoding
from tacit.data.encoding import ENCODING
from tacit.errors import LedgerError, RunError
from tacit.privacy.guarantee import AnyGuarantee
from tacit.privacy.leakage import LeakageAccounting
from tacit.privacy.ledger_head import SUFFIX, LedgerHead
from tacit.runs import checkpoint, guarantee_file, key_file
from tacit.runs.manifest import NEW_RUN, Manifest, Status
from tacit.runs.repetitions import shorten, with_all_bytes

if TYPE_CHECKING:
    from tacit.privacy.ledger import Ledger

MANIFEST, ROUNDS, CHECKPOINT, MODEL = "manifest.json", "rounds.jsonl", "checkpoint.safetensors", "model.safetensors"
LEDGER, LEAKAGE, NOISE_KEY, GUARANTEE, TABLE = "ledger.db", "leakage.json", "noise.key", "guarantee.json", "rounds.csv"
_MAX_LINE = 1 << 24  # bytes of one round in rounds.jsonl
MAX_HISTORY = 1 << 30  # bytes of all of them
SECONDS_BETWEEN_CHECKPOINTS = 5.0


class RunDirectory:
    """The directory of a run that is being written. Use `create` or `open`, and `close` at the end.

    Attributes:
        path: the directory.
        manifest: its manifest.
        state: the last state that was written or read; None before the first checkpoint.
        history: the rounds up to the state that was read on opening.
        every_round: whether every round is followed by a checkpoint, however short it was.
        ratchet: the secret as of the round after the last checkpoint; None: the noise is seeded, or nothing is left to
            be drawn.
    """

    def __init__(
        self, path: Path, manifest: Manifest, created: Sequence[Path] | None = None, ratchet: Ratchet | None = None
    ) -> None:
        self.path, self.manifest, self._created, self.ratchet = path, manifest, created, ratchet
        self.state: State | None = None
        self.history: tuple[Report, ...] = ()
        self._ledger: Ledger | None = None
        self._last_checkpoint, self.every_round = time.monotonic(), False
        with files.storage_errors(path / ROUNDS):
            files.touch_private(path / ROUNDS)
            self._rounds = (path / ROUNDS).open("ab+")

    @classmethod
    def create(
        cls, path: Path, manifest: Manifest, ratchet: Ratchet | None = None, encoding: Encoding | None = None
    ) -> Self:
        """A new directory with a manifest, a key and an encoding; raises `RunError` if it is not empty."""
        check_free(path)
        created = [folder for folder in (path, *path.parents) if not folder.exists()]
        try:
            files.make_private(path)
            if ratchet is not None:
                key_file.write(path / NOISE_KEY, ratchet, manifest.run)
            if encoding is not None:
                files.write(path / ENCODING, encoding.to_bytes(), private=True)
            files.write(path / MANIFEST, manifest.to_bytes(), private=True)
            directory = cls(path, manifest, created, ratchet)._lock()
            directory._remove_partials()
            return directory
        except BaseException:
            _remove(path, created)
            raise

    @classmethod
    def open(cls, path: Path) -> Self:
        """The directory of an earlier run, ready to resume."""
        manifest = read_manifest(path)
        manifest.check_versions(path)
        if manifest.task.encoding:
            read_encoding(path, manifest)
        directory = cls(path, manifest)._lock()
        try:
            directory._rewind()
        except BaseException:
            directory.close()
            raise
        return directory

    def record(self, state: State, report: Report) -> None:
        """Append a round, and write a checkpoint if the last one is a few seconds old."""
        caveat = {"caveat": self.manifest.caveat} if self.manifest.caveat else {}
        short = {"up": shorten(report.up), "down": shorten(report.down)}
        line = write_json({**asdict(report), **short, **caveat})
        with files.storage_errors(self.path / ROUNDS):
            self._append(line)
        if self.every_round or time.monotonic() - self._last_checkpoint >= SECONDS_BETWEEN_CHECKPOINTS:
            self.checkpoint(state)

    def checkpoint(self, state: State) -> None:
        """Write the state to resume from, after the rounds before it are on the disk."""
        with files.storage_errors(self.path / ROUNDS):
            files.flush(self._rounds)
        checkpoint.write(self.path / CHECKPOINT, state, self.manifest.caveat)
        self._note_head()
        self.state, self._last_checkpoint = state, time.monotonic()
        self._erase_keys_before(state.round)

    def stop(self, state: State, status: Status, leakage: LeakageAccounting | None = None) -> None:
        """Stop the run, which may be resumed."""
        self.checkpoint(state)
        self._write_leakage(leakage)
        self._write_manifest(replace(self.manifest, status=status))

    def finish(
        self,
        state: State,
        model: Mapping[str, Tensor],
        leakage: LeakageAccounting | None = None,
        guarantees: Mapping[Unit, AnyGuarantee] | None = None,
    ) -> None:
        """Finish the run: write its last state, model, leakage, guarantees and status."""
        self.checkpoint(state)
        self._write_leakage(leakage)
        if guarantees:
            guarantee_file.write(self.path / GUARANTEE, guarantees)
        tensors = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in model.items()}
        metadata = {"caveat": self.manifest.caveat} if self.manifest.caveat else None
        files.write(self.path / MODEL, safetensors.torch.save(tensors, metadata), private=True)
        self._erase_key()
        self._write_manifest(replace(self.manifest, status="finished"))

    def ledger_for(self, method: Method, *, repeats: bool = False) -> Path | None:
        """The run's own ledger, which is used unless a shared one is given; None: it needs none.

        It needs one for its budget and, if a repeated round is another release (`repeats`), to remember attempts that
        a crash has ended.
        """
        charged = bool(method.terms.accounted)
        return self.path / LEDGER if method.budget is not None or (repeats and charged) else None

    def note(self, ledger: "Ledger | None") -> None:
        """Note the head of the run's ledger in the manifest, now and with every checkpoint.

        Raises:
            LedgerError: the run was started with another ledger.
        """
        noted = self.manifest.ledger
        if noted is not None and ledger is not None and noted.ledger != ledger.head.ledger:
            raise LedgerError(
                f"Expected the ledger with which the run in {self.path} was started, whose first row is "
                f"{noted.ledger[:12]}..., but that of {ledger.path} is {ledger.head.ledger[:12]}.... Give that ledger."
            )
        self._ledger = ledger
        self._note_head()

    def ledger_heads(self) -> Iterator[tuple[str, LedgerHead]]:
        """The ledgers' heads in the manifests of this run and of those beside it, each with its file."""
        for file in sorted({self.path / MANIFEST, *self.path.parent.glob(f"*/{MANIFEST}")}):
            with suppress(RunError):  # other files, and manifests of other versions
                head = read_manifest(file.parent).ledger
                if head is not None:
                    yield str(file), head

    def discard(self) -> None:
        """Remove everything that `create` made; a directory that was opened is left unchanged."""
        self.close()
        if self._created is not None:
            _remove(self.path, self._created)

    def close(self) -> None:
        """Close the files, which releases the lock."""
        with suppress(OSError):
            self._rounds.close()

    def _erase_keys_before(self, index: int) -> None:
        """Keep only what derives the keys of round `index` and later ones; their model is in the checkpoint."""
        if self.ratchet is not None and self.ratchet.round < index:
            self.ratchet = self.ratchet.forward(index)
            key_file.write(self.path / NOISE_KEY, self.ratchet, self.manifest.run)

    def _erase_key(self) -> None:
        with files.storage_errors(self.path / NOISE_KEY):
            (self.path / NOISE_KEY).unlink(missing_ok=True)
        self.ratchet = None

    def _read_key(self) -> None:
        """Read the secret of an unfinished run, and erase the keys of rounds before the checkpoint."""
        if self.manifest.randomness == "seeded":
            return
        if (self.path / MODEL).exists():  # all rounds are done
            self._erase_key()
            return
        done = self.state.round if self.state else 0
        self.ratchet = key_file.read(self.path / NOISE_KEY, self.manifest.run, done)
        self._erase_keys_before(done)

    def _write_leakage(self, leakage: LeakageAccounting | None) -> None:
        if leakage is not None:
            files.write(self.path / LEAKAGE, (json.dumps(leakage.to_json(), indent=2) + "\n").encode(), private=True)

    def _note_head(self) -> None:
        head = None if self._ledger is None else self._ledger.head
        if head not in (None, self.manifest.ledger):
            self._write_manifest(replace(self.manifest, ledger=head))

    def _write_manifest(self, manifest: Manifest) -> None:
        self.manifest = manifest
        files.write(self.path / MANIFEST, manifest.to_bytes(), private=True)

    def _append(self, line: bytes) -> None:
        """Append a whole line, or nothing."""
        end = self._rounds.seek(0, os.SEEK_END)
        try:
            self._rounds.write(line)
            self._rounds.flush()
        except BaseException:
            with suppress(OSError):
                self._rounds.truncate(end)
            raise

    def _lock(self) -> Self:
        """Lock out other processes; the lock ends with this process, however it ends."""
        try:
            files.lock(self._rounds, wait=False, inherited=False)
        except OSError:
            self.close()
            raise RunError(f"{self.path} is being written by another process. Wait for it, or stop it.") from None
        return self

    def _rewind(self) -> None:
        """Return to the checkpoint: read the rounds before it, and remove those after it."""
        self.state = checkpoint.read(self.path / CHECKPOINT)
        self._rounds.seek(0)
        lines = _read_lines(self._rounds, self.state.round if self.state else 0, self.path / ROUNDS)
        self.history = _parse_lines(lines, self.path / ROUNDS)
        self._read_key()
        with files.storage_errors(self.path / ROUNDS):
            self._rounds.truncate(sum(map(len, lines)))
        self._remove_partials()

    def _remove_partials(self) -> None:
        """Remove the temporary files of killed writes; nobody else writes here."""
        with files.storage_errors(self.path):
            for partial in filter(files.is_partial, self.path.iterdir()):
                partial.unlink(missing_ok=True)


def _read_lines(rounds: IO[bytes], count: int, file: Path) -> list[bytes]:
    """The first lines, ending with an empty one if there are fewer; a line too long for a round is a `RunError`."""
    lines: list[bytes] = []
    while len(lines) < count:
        line = rounds.readline(_MAX_LINE + 1)
        if len(line) > _MAX_LINE:
            raise RunError(f"Expected line {len(lines) + 1} of {file} to have at most {_MAX_LINE} bytes. {NEW_RUN}")
        lines.append(line)
        if not line:
            break
    return lines


def check_free(path: Path) -> None:
    """Raise `RunError` unless a new run can be written here."""
    if path.exists() and not path.is_dir():
        raise RunError(f"{path} is a file. Choose another directory with --out.")
    if path.exists() and any(not files.is_partial(entry) for entry in path.iterdir()):
        raise RunError(f"{path} is not empty. Resume the run with --resume {path}, or choose another --out.")


def read_manifest(path: Path) -> Manifest:
    """The manifest of a run; raises `RunError` if there is none or it cannot be read."""
    file = path / MANIFEST
    try:
        content = files.read(file, error=RunError)
    except RunError as error:
        if isinstance(error.__cause__, FileNotFoundError):
            raise RunError(f"Expected the directory of a run, got {path}, which has no {MANIFEST}.") from None
        raise
    return Manifest.from_bytes(content, file)


def read_encoding(path: Path, manifest: Manifest) -> Encoding:
    """Read the encoding of a run's table; raises `RunError` unless it is that of the manifest."""
    encoding = Encoding.read(path / ENCODING)
    if encoding.digest != manifest.task.encoding:
        raise RunError(
            f"Expected the encoding with which the run in {path} was started, but {ENCODING} was changed. Restore it."
        )
    return encoding


def read_rounds(path: Path) -> tuple[Report, ...]:
    """The rounds that were written so far; an incomplete last line is ignored."""
    return RoundsReader(path).read()[1]


class RoundsReader:
    """Reads the rounds of a run that is being written: each call reads only what was appended since the last one.

    A run that is resumed removes rounds after its checkpoint; the file is then read again from its beginning.
    """

    def __init__(self, path: Path) -> None:
        self._file, self._offset, self._count = path / ROUNDS, 0, 0

    def read(self) -> tuple[bool, tuple[Report, ...]]:
        """Whether the file began anew, and the rounds since then or since the last call."""
        try:
            size = self._file.stat().st_size
        except OSError as error:
            raise RunError(f"Could not read {self._file}: {error.strerror}.") from error
        again = size < self._offset
        if again:
            self._offset = self._count = 0
        if size == self._offset:
            return again, ()
        if size > MAX_HISTORY:
            raise RunError(f"Expected {self._file} to have at most {MAX_HISTORY} bytes, got {size}. {NEW_RUN}")
        with self._file.open("rb") as rounds:
            rounds.seek(self._offset)
            lines = [line for line in _read_lines(rounds, sys.maxsize, self._file) if line.endswith(b"\n")]
        reports = _parse_lines(lines, self._file, self._count + 1)
        self._offset, self._count = self._offset + sum(map(len, lines)), self._count + len(lines)
        return again, reports


def _remove(path: Path, created: Iterable[Path]) -> None:
    """Remove the files of a run and, if they are empty, the directories that were created for it."""
    with suppress(OSError):
        for name in (NOISE_KEY, MANIFEST, ROUNDS, CHECKPOINT, MODEL, LEDGER, LEDGER + SUFFIX, LEAKAGE, GUARANTEE):
            (path / name).unlink(missing_ok=True)
        for folder in created:
            folder.rmdir()


def _parse_lines(lines: list[bytes], file: Path, first: int = 1) -> tuple[Report, ...]:
    reports = []
    for number, line in enumerate(lines, start=first):
        source = Source(label=f"line {number} of {file}", error=RunError, advice=NEW_RUN, closed=False)
        report = with_all_bytes(read_json(line, Report, source, strict=False), source)
        if report.round != number:
            raise source.problem(f"Expected {source.label} to be of round {number}, got round {report.round}.")
        reports.append(report)
    return tuple(reports)
