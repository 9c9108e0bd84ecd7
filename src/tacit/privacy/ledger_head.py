"""The head of a ledger, stored outside of it, to detect a rolled-back ledger; and the use of its budget.

The hash chain of a ledger shows that no row was changed, but an older copy of the file is a valid chain, too: charges
that were made since would be forgotten, and the budget spent twice. Its head is therefore noted in other places: in a
small file beside the ledger after every row, in the manifest of every run that charges it, and in the log of a site.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from tacit.core import Budget, files
from tacit.core.prices import Unit
from tacit.core.serialization import Source, read_json, write_json
from tacit.errors import LedgerError
from tacit.privacy.guarantee import plural

SUFFIX, _LENGTH = ".head", 256
NOTHING = "Nothing was released."
NO_CLIENTS = (
    "Nothing is guaranteed for a client as a whole: runs that protect only what is within clients do not bound what "
    "they release about one. What runs that protect clients released is included, at twice its distance."
)
ONE_EACH = (
    "It holds for clients that are one in every run, or none: an owner of data that a run divides into several clients "
    "is protected there as each of them."
)
NO_PROOF = (
    "Nothing is guaranteed any more for these data: rounds were charged for which no ε is proved, so that nothing "
    "bounds what they released."
)


@dataclass(frozen=True)
class LedgerHead:
    """A ledger at some time.

    Attributes:
        ledger: the hash of the ledger's first row, which identifies it.
        row: the number of its last row.
        hash: the hash of that row, and by it of all rows before.
    """

    ledger: str
    row: int
    hash: str

    def check_precedes(self, hashes: Sequence[str], path: Path, noted: str) -> None:
        """Raise `LedgerError` unless a ledger with these hashes of rows continues this head, which `noted` names."""
        if self.row < len(hashes) and hashes[self.row] == self.hash:
            return
        expected = f"Expected row {self.row} ({self.hash[:12]}...) in {path}, as noted in {noted}"
        raise LedgerError(
            f"{expected}, but {self._difference(hashes)}. Charges are missing from it, so that privacy would be spent "
            f"twice. Restore its newest copy, or use another ledger with what is left of the budget. {NOTHING}"
        )

    def _difference(self, hashes: Sequence[str]) -> str:
        if not hashes:
            return "it is empty"
        if hashes[0] != self.ledger:
            return f"it is another ledger, whose first row is {hashes[0][:12]}... and not {self.ledger[:12]}..."
        if self.row >= len(hashes):
            return f"it ends at row {len(hashes) - 1}: it was rolled back"
        return f"that row is {hashes[self.row][:12]}...: it was rolled back, and charged again since"


@dataclass(frozen=True)
class NotedHead:
    """A head of a ledger, and where it was noted."""

    head: LedgerHead
    place: str


@dataclass(frozen=True)
class LedgerUse:
    """What all runs together have used of a ledger's budget.

    Attributes:
        path: the ledger's file.
        epsilons: the ε of every unit that was charged, over all reserved rounds, at the budget's δ; None: for clients,
            if a run protects only units within them, and for every unit if nothing is proved of a charged round.
        budget: the budget of all runs together.
        rounds: the number of reserved rounds.
        runs: the number of runs that reserved them.
    """

    path: Path
    epsilons: Mapping[Unit, float | None]
    budget: Budget
    rounds: int
    runs: int

    @property
    def unbounded(self) -> str:
        """Why ε of clients, or of every unit, is infinite, in a sentence; empty: of none it is."""
        if None not in self.epsilons.values():
            return ""
        return NO_PROOF if all(each is None for each in self.epsilons.values()) else NO_CLIENTS

    def __str__(self) -> str:
        limit = "no limit" if not self.budget.limited else f"{self.budget.epsilon:g}"
        limit += f" at δ = {self.budget.delta:g}"
        epsilons = {unit: epsilon for unit, epsilon in self.epsilons.items() if epsilon is not None}
        scopes = {unit: "" if [*self.epsilons] == [Unit.CLIENT] else f" for every {unit}" for unit in epsilons}
        used = [f"ε = {epsilon:.4g} of {limit}{scopes[unit]}" for unit, epsilon in epsilons.items()]
        if self.unbounded == NO_PROOF:
            return f"Ledger {self.path}: {NO_PROOF}"
        return (
            f"Ledger {self.path}: {' and '.join(used) or f'ε = 0 of {limit}'} is used by all runs together "
            f"({plural(self.runs, 'run')}, {plural(self.rounds, 'round')})."
            + f" {self.unbounded}" * bool(self.unbounded)
            + f" {ONE_EACH}" * (self.runs > 1 and Unit.CLIENT in epsilons)
        )

    def to_json(self) -> dict[str, object]:
        return {**asdict(self), "path": str(self.path), "epsilons": {**self.epsilons}}


def head_file(path: Path) -> Path:
    """Where the head of a ledger is noted beside it."""
    return path.with_name(path.name + SUFFIX)


def write_head(path: Path, head: LedgerHead) -> None:
    """Note the head of the ledger at `path` beside it.

    It is not forced to the disk, because a head that is behind is still one that the ledger continues. It always has
    the same length and is written in place and at once, so that a crash leaves the old one or the new one.
    """
    file = head_file(path)
    with files.storage_errors(file):
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT, 0o600)
        try:
            os.write(descriptor, write_json(asdict(head)).ljust(_LENGTH))
        finally:
            os.close(descriptor)


def read_head(path: Path) -> LedgerHead | None:
    """The head that was noted beside the ledger at `path`; None if there is none."""
    file = head_file(path)
    if not file.exists():
        return None
    advice = f"Restore the newest copy of both, {path.name} and {file.name}. {NOTHING}"
    source = Source(label=str(file), error=LedgerError, advice=advice)
    return read_json(files.read(file, error=LedgerError), LedgerHead, source)
