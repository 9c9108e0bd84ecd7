"""One law for all files that are chained: ledger, journal, and the journal of an enclave."""

import sqlite3
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from tacit.core import Budget, Turnout
from tacit.core.prices import Gaussian, Release, Sampling
from tacit.enclave.configuration import Journal, JournalEntry
from tacit.errors import UserError
from tacit.federation.journal import AuditLog, read_journal
from tacit.privacy.ledger import Ledger
from tacit.privacy.unit_accounting import Charge

COUNT = 4  # entries


@dataclass(frozen=True)
class Chained:
    """A kind of chained file: how rounds are added to one, which rounds one has, and its lines."""

    add: Callable[[Path, int], None]
    rounds: Callable[[Path], list[int]]
    lines: Callable[[Path], list[bytes]]
    rewrite: Callable[[Path, list[bytes]], None]


def _charge(path: Path, index: int) -> None:
    with Ledger.open(path, Budget(8, 1e-5)) as ledger:
        release = Release(Gaussian(5.0), sampling=Sampling("poisson", 0.01))
        ledger.reserve("run", index, Charge.of_clients(release))


def _charged(path: Path) -> list[int]:
    with Ledger.open(path) as ledger:
        return [entry.round for entry in ledger.entries]


def _rows(path: Path) -> list[bytes]:
    connection = sqlite3.connect(path)
    rows = [str(line).encode() for (line,) in connection.execute("SELECT line FROM rows ORDER BY number")]
    connection.close()
    return rows


def _rewrite_rows(path: Path, lines: list[bytes]) -> None:
    connection = sqlite3.connect(path)
    with connection:
        connection.execute("DELETE FROM rows")
        connection.executemany("INSERT INTO rows VALUES (?, ?)", [(i, each.decode()) for i, each in enumerate(lines)])
    connection.close()


def _release(path: Path, index: int) -> None:
    Journal(path).append(JournalEntry(index, Turnout(5, 4), bytes([index] * 32), bytes(32)))


def _lines(path: Path) -> list[bytes]:
    return path.read_bytes().splitlines()


def _rewrite_lines(path: Path, lines: list[bytes]) -> None:
    path.write_bytes(b"".join(line + b"\n" for line in lines))


FILES = {
    "ledger": Chained(_charge, _charged, _rows, _rewrite_rows),
    "journal": Chained(
        lambda path, index: AuditLog(path).append("charged", round=index),
        lambda path: [entry["round"] for entry in read_journal(path)],
        _lines,
        _rewrite_lines,
    ),
    "enclave": Chained(_release, lambda path: [entry.round for entry in Journal(path).entries], _lines, _rewrite_lines),
}
CHANGES: dict[str, Callable[[list[bytes]], list[bytes]]] = {
    "first missing": lambda lines: lines[1:],
    "middle missing": lambda lines: [*lines[:2], *lines[3:]],
    "swapped": lambda lines: [*lines[:1], lines[2], lines[1], *lines[3:]],
    "twice": lambda lines: [*lines[:2], lines[1], *lines[2:]],
    "changed": lambda lines: [*lines[:-1], lines[-1].replace(b'"round": 4', b'"round": 5')],
    "hash changed": lambda lines: [*lines[:-1], lines[-1].replace(b'"hash": "', b'"hash": "f')],
    "space added": lambda lines: [*lines[:-1], lines[-1] + b" "],
    "half a line": lambda lines: [*lines[:1], lines[1][:-9], *lines[2:]],
}


@pytest.fixture(params=FILES)
def chained(request: pytest.FixtureRequest) -> Chained:
    return FILES[request.param]


@pytest.fixture
def file(chained: Chained, tmp_path: Path) -> Path:
    for index in range(1, COUNT + 1):
        chained.add(tmp_path / "file", index)
    return tmp_path / "file"


def test_everything_that_was_acknowledged_is_read(chained: Chained, file: Path) -> None:
    assert chained.rounds(file) == [1, 2, 3, 4]


@pytest.mark.parametrize("change", CHANGES)
def test_changed_missing_and_reordered_entries_are_refused(chained: Chained, file: Path, change: str) -> None:
    chained.rewrite(file, CHANGES[change](chained.lines(file)))
    with pytest.raises(UserError):
        chained.rounds(file)
    with pytest.raises(UserError):
        chained.add(file, COUNT + 1)  # nor is anything added to it


@pytest.mark.parametrize("other", FILES)
def test_entries_of_one_kind_of_file_are_none_of_another(chained: Chained, file: Path, other: str) -> None:
    if FILES[other] is chained:
        return
    target = file.with_name("other")
    for index in range(1, COUNT + 1):
        FILES[other].add(target, index)
    FILES[other].rewrite(target, chained.lines(file))
    with pytest.raises(UserError):
        FILES[other].rounds(target)


@pytest.mark.parametrize("name", ["journal", "enclave"])  # SQLite rolls back what the ledger did not finish
def test_an_entry_that_a_crash_cut_off_was_never_acknowledged(name: str, tmp_path: Path) -> None:
    chained, path = FILES[name], tmp_path / "file"
    for index in (1, 2):
        chained.add(path, index)
    before = path.read_bytes()
    chained.add(path, 3)
    whole = path.read_bytes()
    for end in range(len(before), len(whole)):  # at every byte
        path.write_bytes(whole[:end])
        assert chained.rounds(path) == [1, 2]
    chained.add(path, 4)
    assert chained.rounds(path) == [1, 2, 4]
    assert path.read_bytes().startswith(before)
