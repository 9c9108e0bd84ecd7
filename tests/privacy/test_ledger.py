import json
import multiprocessing
import os
import random
import resource
import shutil
import signal
import sqlite3
import time
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tacit.core import Budget
from tacit.core.prices import Adjacency, Gaussian, Release, Sampling, Zcdp
from tacit.errors import BudgetError, LedgerError, StorageError, UserError
from tacit.privacy.accountants import FAST_PLD, Accounting, Pld, Rdp
from tacit.privacy.ledger import Ledger
from tacit.privacy.ledger_file import LedgerFile
from tacit.privacy.release_json import canonical, from_json, to_json
from tacit.privacy.unit_accounting import Charge
from tacit.wire.chain import Chain

BUDGET = Budget(2.0, 1e-5)
RELEASE = Release(Gaussian(2.0), sampling=Sampling("poisson", 0.1))
OTHER = Release(Gaussian(9.0), sampling=Sampling("fixed", 10 / 100))
of = Charge.of_clients


def alike(ledger: Ledger) -> Accounting:
    """What was released about every client."""
    composed = ledger.accounts.clients.composed
    assert composed is not None
    return composed


def open_ledger(path: Path, budget: Budget | None = BUDGET) -> Ledger:
    return Ledger.open(path / "ledger.db", budget, Rdp())


def fill(path: Path, rounds: int = 4) -> Path:
    with open_ledger(path) as ledger:
        for number in range(1, rounds + 1):
            ledger.release(ledger.reserve("run", number, of(RELEASE)), f"digest {number}")
    return path / "ledger.db"


def tamper(file: Path, *statements: str) -> None:
    connection = sqlite3.connect(file)
    with connection:
        for statement in statements:
            connection.execute(statement)
    connection.close()


def test_all_runs_share_one_budget(tmp_path):
    with open_ledger(tmp_path) as ledger:
        allowed = alike(ledger).remaining_rounds(RELEASE, 2.0, 1e-5)
        for number in range(1, allowed):
            ledger.reserve("one", number, of(RELEASE))
    with open_ledger(tmp_path) as ledger:
        assert ledger.accounts.clients.rounds == allowed - 1
        ledger.reserve("other", 1, of(RELEASE), label="the last that fits")
        refusal = r"Round 2 of other would exceed the budget of ε = 2 at δ = 1e-05: ε = 1\.9"
        with pytest.raises(BudgetError, match=refusal):
            ledger.reserve("other", 2, of(RELEASE))
        assert ledger.accounts.clients.rounds == allowed
        assert ledger.accounts.clients.epsilon(1e-5) <= 2 < alike(ledger).compose(RELEASE).epsilon(1e-5)
        assert alike(ledger).remaining_rounds(RELEASE, 2.0, 1e-5) == 0


def test_the_accounting_is_that_of_all_events(tmp_path):
    with open_ledger(tmp_path) as ledger:
        ledger.reserve("a", 1, of(RELEASE))
        ledger.reserve("b", 1, of(OTHER))
        ledger.reserve("a", 2, of(RELEASE))
        epsilon = ledger.accounts.clients.epsilon(1e-5)
    with open_ledger(tmp_path, None) as ledger:
        assert ledger.budget == BUDGET
        assert ledger.accounts.clients.epsilon(1e-5) == pytest.approx(epsilon)
        assert epsilon == pytest.approx(Accounting.of(Rdp(), [RELEASE, OTHER, RELEASE]).epsilon(1e-5))
        assert [(entry.run, entry.round) for entry in ledger.entries] == [("a", 1), ("b", 1), ("a", 2)]


def test_repeating_a_round_costs_nothing_and_another_event_is_refused(tmp_path):
    with open_ledger(tmp_path) as ledger:
        first = ledger.reserve("run", 1, of(RELEASE))
    with open_ledger(tmp_path) as ledger:
        assert ledger.reserve("run", 1, of(RELEASE)) == first
        assert ledger.accounts.clients.rounds == 1
        with pytest.raises(LedgerError, match="start a new run"):
            ledger.reserve("run", 1, of(OTHER))
        assert ledger.accounts.clients.rounds == 1


COSTLIER, COSTLIEST = (Release(Gaussian(noise), sampling=Sampling("poisson", 0.1)) for noise in (1.5, 1.2))


def test_a_second_attempt_with_another_key_is_another_charge(tmp_path):
    with open_ledger(tmp_path) as ledger:
        first, again = (ledger.reserve("run", 1, of(RELEASE), key="a") for _ in range(2))
        assert (first, ledger.accounts.clients.rounds) == (again, 1)
        second = ledger.reserve("run", 1, of(RELEASE), key="b")
        assert (first.attempt, second.attempt, ledger.accounts.clients.rounds) == (1, 2, 2)
        ledger.release(second, "model")
    with open_ledger(tmp_path) as ledger:
        assert [entry.digest for entry in ledger.attempts("run", 1)] == [None, "model"]
        twice = Accounting.of(alike(ledger).accountant).compose(RELEASE, 2)
        assert ledger.accounts.clients.epsilon(1e-5) == pytest.approx(twice.epsilon(1e-5))
        with pytest.raises(LedgerError, match="knows the key of round 2 of run: it is that of round 1 of run"):
            ledger.reserve("run", 2, of(RELEASE), key="a")


def test_the_charge_of_a_reserved_round_may_increase_but_never_decrease(tmp_path):
    with open_ledger(tmp_path) as ledger:
        ledger.reserve("run", 1, of(RELEASE))
        planned = ledger.reserve("run", 2, of(RELEASE))
        increased = ledger.increase(planned, of(COSTLIER))
        epsilon = ledger.accounts.clients.epsilon(1e-5)
        assert epsilon == pytest.approx(Accounting.of(Rdp(), [RELEASE, COSTLIER]).epsilon(1e-5))
        assert ledger.accounts.clients.rounds == 2
        assert ledger.increase(increased, of(RELEASE)) == increased  # no refunds
        assert ledger.increase(planned, of(COSTLIER)) == increased
        assert ledger.accounts.clients.epsilon(1e-5) == epsilon
    with open_ledger(tmp_path) as ledger:
        assert ledger.accounts.clients.epsilon(1e-5) == pytest.approx(epsilon)
        assert ledger.reserve("run", 2, of(RELEASE)) == increased  # as planned: a resumed run reserves it so
        assert ledger.reserve("run", 2, of(COSTLIER)) == increased
        with pytest.raises(LedgerError, match="start a new run"):
            ledger.reserve("run", 2, of(OTHER))
        assert ledger.release(increased, "abc").digest == "abc"
        with pytest.raises(LedgerError, match="start a new run"):
            ledger.increase(increased, of(COSTLIEST))  # too late: it is released
        assert ledger.accounts.clients.epsilon(1e-5) == pytest.approx(epsilon)


def test_an_increase_beyond_the_budget_changes_nothing(tmp_path):
    with open_ledger(tmp_path) as ledger:
        first = ledger.reserve("run", 1, of(RELEASE))
        with pytest.raises(BudgetError, match="would exceed the budget"):
            ledger.increase(first, of(Release(Gaussian(0.5))))
        assert ledger.entries == (first,)
        assert ledger.accounts.clients.epsilon(1e-5) == pytest.approx(Accounting.of(Rdp(), [RELEASE]).epsilon(1e-5))


def test_a_round_is_released_once_and_only_if_reserved(tmp_path):
    with open_ledger(tmp_path) as ledger:
        entry = ledger.reserve("run", 1, of(RELEASE))
        released = ledger.release(entry, "abc")
    with open_ledger(tmp_path) as ledger:
        assert ledger.release(entry, "abc") == released == ledger.entries[0]
        with pytest.raises(LedgerError, match="already released with other content"):
            ledger.release(entry, "def")
        with pytest.raises(LedgerError, match="never reserved"):
            ledger.release(type(entry)("run", 2, entry.event), "abc")


def test_a_release_without_noise_exceeds_every_budget(tmp_path):
    with open_ledger(tmp_path) as ledger, pytest.raises(BudgetError):
        ledger.reserve("run", 1, of(Release(Gaussian(0.0))))


def test_the_ledger_of_other_runs_is_refused(tmp_path):
    fill(tmp_path)
    with open_ledger(tmp_path) as ledger:
        ledger.check_charged("run", 4)
        ledger.check_charged("new", 0)
        with pytest.raises(LedgerError, match="round 5 of run was never charged"):
            ledger.check_charged("run", 5)


def test_a_ledger_keeps_its_budget_and_accountant(tmp_path):
    file = fill(tmp_path)
    with pytest.raises(LedgerError, match="has a budget of ε = 2 at δ = 1e-05, not of ε = 3"):
        Ledger.open(file, Budget(3, 1e-5))
    for accountant in (Pld(), Rdp(Adjacency.REPLACE_ONE)):
        with pytest.raises(LedgerError, match="uses accountant rdp for add-or-remove"):
            Ledger.open(file, BUDGET, accountant)
    with pytest.raises(LedgerError, match="Give its budget"):
        Ledger.open(tmp_path / "new.db")
    with Ledger.open(tmp_path / "new.db", BUDGET) as ledger:
        assert alike(ledger).accountant == FAST_PLD


def test_a_ledger_that_is_held_is_refused_until_it_is_closed(tmp_path):
    with open_ledger(tmp_path), pytest.raises(LedgerError, match="held by another process"):
        open_ledger(tmp_path)
    open_ledger(tmp_path).close()


def _hold(path: Path, ready: "multiprocessing.Queue[None]") -> None:
    ledger = Ledger.open(path, BUDGET)
    if os.fork() == 0:  # a worker that outlives its parent
        time.sleep(4)
        os._exit(0)
    ready.put(None)
    time.sleep(60)
    ledger.close()


def test_a_killed_process_releases_the_lock(tmp_path):
    context, file = multiprocessing.get_context("fork"), tmp_path / "ledger.db"
    ready = context.Queue()
    child = context.Process(target=_hold, args=(file, ready))
    child.start()
    ready.get(timeout=30)
    with pytest.raises(LedgerError, match="held by another process"):
        Ledger.open(file)
    child.kill()
    child.join()
    Ledger.open(file).close()


def _use_in_child(ledger: Ledger, answers: "multiprocessing.Queue[str]") -> None:
    try:
        ledger.reserve("child", 1, of(RELEASE))
    except LedgerError as error:
        answers.put(str(error))
    ledger.close()


def test_a_forked_process_can_neither_write_nor_unlock(tmp_path):
    context = multiprocessing.get_context("fork")
    with open_ledger(tmp_path) as ledger:
        answers = context.Queue()
        child = context.Process(target=_use_in_child, args=(ledger, answers))
        child.start()
        assert "belongs to the process that opened it" in answers.get(timeout=30)
        child.join()
        with pytest.raises(LedgerError, match="held"):
            open_ledger(tmp_path)
        ledger.reserve("run", 1, of(RELEASE))


@pytest.mark.parametrize(
    ("statements", "message"),
    [
        (["UPDATE rows SET line = replace(line, '2.0', '9.0') WHERE number = 3"], "row 3 was changed"),
        (["UPDATE rows SET line = replace(line, '2.0', '90.0') WHERE number = 0"], "row 0 was changed"),
        (["DELETE FROM rows WHERE number = 3"], "row 3 is missing"),
        (["DELETE FROM rows WHERE number = 8"], "rows after 7 are missing"),
        (["DELETE FROM rows WHERE number >= 7"], "rows after 6 are missing"),
        (["DELETE FROM rows"], "rows after -1 are missing"),
        (["UPDATE rows SET number = number + 1000", "UPDATE rows SET number = 1008 - number"], "row 0 was changed"),
        (["DELETE FROM rows WHERE number = 0"], "row 0 is missing"),
        (["UPDATE head SET number = 7"], "rows after 8 are missing"),
        (["DELETE FROM head"], "rows after 8 are missing"),
        (["DROP TABLE head"], "no such table"),
        (["DROP TABLE rows"], "no such table"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else None,
)
def test_tampering_with_rows_is_detected(tmp_path, statements, message):
    file = fill(tmp_path)
    tamper(file, *statements)
    with pytest.raises(LedgerError, match=message):
        open_ledger(tmp_path)


@pytest.mark.parametrize("share", [0.99, 0.7, 0.5, 0.3, 0.1])
def test_a_truncated_file_is_detected(tmp_path, share):
    file = fill(tmp_path, 30)
    content = file.read_bytes()
    file.write_bytes(content[: int(len(content) * share)])
    with pytest.raises(LedgerError, match="was changed or damaged"):
        open_ledger(tmp_path)


@pytest.mark.parametrize("content", [b"not a database at all" * 100, b"SQLite format 3\0" + b"\xff" * 5000])
def test_other_files_are_refused(tmp_path, content):
    (tmp_path / "ledger.db").write_bytes(content)
    with pytest.raises(LedgerError, match="was changed or damaged"):
        open_ledger(tmp_path)
    assert (tmp_path / "ledger.db").read_bytes() == content


def test_flipped_bits_never_lower_the_charges(tmp_path):
    file = fill(tmp_path, 20)
    with open_ledger(tmp_path) as ledger:
        epsilon = ledger.accounts.clients.epsilon(1e-5)
    content, generator = file.read_bytes(), random.Random(0)
    for _ in range(60):
        at = generator.randrange(len(content))
        file.write_bytes(content[:at] + bytes([content[at] ^ (1 << generator.randrange(8))]) + content[at + 1 :])
        try:
            with open_ledger(tmp_path) as ledger:
                assert ledger.accounts.clients.epsilon(1e-5) == pytest.approx(epsilon)
        except LedgerError:
            pass


def test_paths_that_cannot_be_written(tmp_path):
    for path in (tmp_path / "missing" / "ledger.db", tmp_path, Path("/proc/ledger.db")):
        with pytest.raises(StorageError, match="Could not write"):
            Ledger.open(path, BUDGET)


def test_a_read_only_ledger_is_refused_before_anything_is_released(tmp_path):
    file = fill(tmp_path)
    ledger = Ledger(LedgerFile(file))
    ledger._file._connection.close()
    ledger._file._connection = sqlite3.connect(f"file:{file}?mode=ro", uri=True, isolation_level=None)
    with ledger._file.errors():
        ledger._load(None, None, None)
    with ledger, pytest.raises(StorageError, match="readonly"):
        ledger.reserve("run", 5, of(RELEASE))
    assert ledger.accounts.clients.rounds == 4


def _fill_until_full(file: str, answers: "multiprocessing.Queue[object]") -> None:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    ledger = Ledger.open(Path(file), BUDGET, Rdp())
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
    done = 0
    try:
        while True:
            ledger.reserve("run", done + 1, of(Release(Gaussian(50.0), sampling=Sampling("poisson", 0.001))), "x" * 500)
            done += 1
    except Exception as error:
        answers.put((type(error).__name__, str(error), done, ledger.accounts.clients.rounds))


def test_a_full_disk_stops_before_the_release(tmp_path):
    context = multiprocessing.get_context("fork")
    answers = context.Queue()
    child = context.Process(target=_fill_until_full, args=(str(tmp_path / "ledger.db"), answers))
    child.start()
    name, message, done, rounds = answers.get(timeout=60)
    child.join()
    assert (name, rounds) == ("StorageError", done)
    assert "Nothing was released" in message
    assert done > 3
    with open_ledger(tmp_path) as ledger:
        assert ledger.accounts.clients.rounds in (done, done + 1)  # never less than what was reserved


def _train(folder: Path, run: str) -> None:
    """Reserve, release and mark rounds until killed."""
    release = Release(Gaussian(20.0), sampling=Sampling("poisson", 0.01))
    with open_ledger(folder) as ledger, (folder / f"{run}.released").open("a") as released:
        for number in range(1, 100_000):
            entry = ledger.reserve(run, number, of(release))
            if entry.digest is None:
                released.write(f"{number}\n")
                released.flush()
            ledger.release(entry, f"digest {number}")


def _lines(file: Path) -> int:
    return file.read_text().count("\n") if file.exists() else 0


def test_kills_at_random_points(tmp_path):
    """Released implies charged, charges never decrease, and resumed rounds are not charged again.

    Only this kills the ledger's process in the middle of SQLite's transactions.
    """
    generator, charged, context = random.Random(1), 0, multiprocessing.get_context("fork")
    for kill in range(30):
        run = f"run {kill // 4}"  # some resume, some start a new run
        child = context.Process(target=_train, args=(tmp_path, run))
        before = _lines(tmp_path / f"{run}.released")
        child.start()
        while kill % 4 and child.is_alive() and _lines(tmp_path / f"{run}.released") < before + 2:
            time.sleep(0.001)  # however busy the machine is; every fourth is killed at any point
        time.sleep(generator.uniform(0, 0.1))
        assert child.is_alive()
        child.kill()
        child.join()
        with open_ledger(tmp_path) as ledger:
            assert ledger.accounts.clients.rounds >= charged
            charged = ledger.accounts.clients.rounds
            reserved = {(entry.run, entry.round) for entry in ledger.entries}
        assert len(reserved) == charged
        for file in tmp_path.glob("*.released"):
            numbers = [int(line) for line in file.read_text().split("\n")[:-1]]
            assert {(file.stem, number) for number in numbers} <= reserved
            assert len(numbers) <= len(set(numbers)) + kill  # an unmarked round is released again, unchanged
    assert charged > 30


def test_a_copy_in_the_middle_of_a_transaction_is_rolled_back(tmp_path):
    """A crash of the machine may leave the file and its journal as they were at any instant."""
    fill(tmp_path)
    crashed = tmp_path / "crashed"
    crashed.mkdir()
    with open_ledger(tmp_path) as ledger:
        ledger._file._connection.execute("PRAGMA cache_size = 1")
        ledger._file._connection.execute("BEGIN IMMEDIATE")
        ledger._file._connection.execute("UPDATE rows SET line = line || 'x'")
        ledger._file._connection.execute("PRAGMA cache_spill = 1")
        for file in tmp_path.glob("ledger.db*"):
            shutil.copy(file, crashed / file.name)
        ledger._file._connection.execute("ROLLBACK")
    with open_ledger(crashed) as ledger:
        assert ledger.accounts.clients.rounds == 4


def test_rows_are_plain_json(tmp_path):
    file = fill(tmp_path, 1)
    connection = sqlite3.connect(file)
    bodies = [json.loads(body) for (body,) in connection.execute("SELECT line FROM rows ORDER BY number")]
    connection.close()
    assert [body["kind"] for body in bodies] == ["budget", "reserve", "release"]
    (group,) = json.loads(bodies[1]["event"])["groups"]
    assert group["event"]["loss"] == {"kind": "gaussian", "noise": 2.0}
    assert [body["unit"] for body in bodies[1:]] == ["client", "client"]
    assert os.path.getsize(file) < 50_000


losses = st.floats(0, 100).map(Gaussian) | st.builds(Zcdp, st.floats(1e-6, 10), st.floats(0, 1))
samplings = st.builds(Sampling.at, st.floats(0.001, 1), st.sampled_from(["poisson", "fixed"]))
releases = st.builds(Release, losses, st.floats(0, 1), samplings)


@given(releases)
def test_releases_round_trip_through_json(release):
    text = canonical(to_json(release))
    assert from_json(json.loads(text)) == release


GAUSSIAN = {"kind": "gaussian", "noise": 3.0}
EVERYONE = {"kind": "everyone", "rate": 1.0}


@pytest.mark.parametrize(
    "data",
    [
        None,
        [],
        {},
        GAUSSIAN,
        {"kind": ["release"]},
        *(
            {"kind": "release", "loss": {"kind": "gaussian", "noise": noise}, "distance": 0.0, "sampling": EVERYONE}
            for noise in (float("nan"), -1.0, float("inf"), "much", None)
        ),
        {"kind": "release", "loss": {"kind": "gaussian", "noise": 1.0}, "distance": 0.0},
        {
            "kind": "release",
            "loss": {"kind": "laplace"},
            "distance": 0.0,
            "sampling": {"kind": "everyone", "rate": 1.0},
        },
        {"kind": "release", "loss": GAUSSIAN, "distance": 2.0, "sampling": {"kind": "everyone", "rate": 1.0}},
        {"kind": "release", "loss": GAUSSIAN, "distance": 0.0, "sampling": {"kind": "sometimes", "rate": 0.5}},
        {"kind": "release", "loss": GAUSSIAN, "distance": 0.0, "sampling": {"kind": "fixed", "rate": 1.5}},
    ],
)
def test_json_that_describes_no_release_is_refused(data):
    with pytest.raises(UserError, match="Expected"):
        from_json(data)


@pytest.mark.parametrize("bit", [0x01, 0x80, 0xFF])
def test_a_flipped_byte_is_a_ledger_error_or_is_not_noticed(tmp_path, bit):
    """A byte that no row uses may change; one that is used must be reported as this ledger's own error."""
    file = fill(tmp_path)
    content, noticed = file.read_bytes(), 0
    for at in [*range(200), *range(200, len(content), 23)]:
        file.write_bytes(content[:at] + bytes([content[at] ^ bit]) + content[at + 1 :])
        try:
            with open_ledger(tmp_path) as ledger:
                assert len(ledger.entries) == 4
        except (LedgerError, StorageError):
            noticed += 1
    assert noticed > 50


@pytest.mark.parametrize(
    "statements",
    [
        [
            "ALTER TABLE rows RENAME TO old",
            "CREATE VIEW rows AS WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n) SELECT i FROM n",
        ],
        ["CREATE TRIGGER more AFTER INSERT ON rows BEGIN DELETE FROM rows; END"],
        ["CREATE INDEX more ON rows (line)"],
    ],
    ids=["view", "trigger", "index"],
)
def test_a_ledger_with_a_schema_of_its_own_is_refused(tmp_path, statements):
    """A view or trigger in the file would run queries that its author wrote."""
    tamper(fill(tmp_path), *statements)
    with pytest.raises(LedgerError, match="other tables than a ledger"):
        open_ledger(tmp_path)


@pytest.mark.parametrize(
    "event",
    [
        "[" * 100_000,
        '{"kind":"release","loss":{"kind":"gaussian","noise":1e-300},"distance":1e300,"sampling":{"kind":"poisson","rate":0.1}}',
        '{"kind":"repeated","count":' + "9" * 400 + ',"event":{"kind":"gaussian","noise":1.0}}',
        '{"kind":"release","loss":{"kind":"zcdp","rho":1e308,"xi":1e308},"distance":1.0,"sampling":{"kind":"all","rate":1.0}}',
    ],
    ids=["nested", "tiny noise", "a huge count", "huge loss"],
)
def test_a_hostile_event_with_a_right_chain_is_a_ledger_error(tmp_path, event):
    file = fill(tmp_path)
    connection = sqlite3.connect(file)
    rows = [json.loads(body) for (body,) in connection.execute("SELECT line FROM rows ORDER BY number")]
    next(row for row in rows if row["kind"] == "reserve")["event"] = event
    chain = Chain("ledger")
    with connection:
        for number, row in enumerate(rows):
            link = chain.seal({name: value for name, value in row.items() if name != "hash"})
            chain.hashes.append(link.hash)
            connection.execute("UPDATE rows SET line = ? WHERE number = ?", (link.line.decode(), number))
        connection.execute("UPDATE head SET hash = ?", (chain.head.hex(),))
    connection.close()
    with suppress(LedgerError, UserError):  # a valid release that costs more than any budget may be in a ledger
        open_ledger(tmp_path).close()


def test_an_older_copy_of_a_ledger_is_noticed(tmp_path):
    file = fill(tmp_path, rounds=2)
    shutil.copy(file, tmp_path / "backup.db")
    fill(tmp_path, rounds=4)
    shutil.copy(tmp_path / "backup.db", file)
    refusal = (
        r"Expected row 8 \(\w+\.\.\.\) in .*, as noted in .*ledger\.db\.head, but it ends at row 4: it was rolled back"
    )
    with pytest.raises(LedgerError, match=refusal) as error:
        open_ledger(tmp_path)
    assert "Restore its newest copy" in str(error.value)
    with Ledger.open(tmp_path / "backup.db") as elsewhere:  # a ledger that was moved without its note still opens
        assert elsewhere.accounts.clients.rounds == 2


def test_a_ledger_that_was_rolled_back_and_charged_again_is_noticed(tmp_path):
    file = fill(tmp_path, rounds=2)
    shutil.copy(file, tmp_path / "copy.db")
    fill(tmp_path, rounds=4)
    with Ledger.open(tmp_path / "copy.db") as other:
        for number in range(1, 5):
            other.reserve("another run", number, of(RELEASE))
    shutil.copy(tmp_path / "copy.db", file)
    with pytest.raises(LedgerError, match="it was rolled back, and charged again since"):
        open_ledger(tmp_path)


def test_a_deleted_ledger_is_not_begun_anew(tmp_path):
    fill(tmp_path).unlink()
    for _ in range(2):
        with pytest.raises(LedgerError, match=r"Expected row 8 .* but it is empty"):
            open_ledger(tmp_path)


def test_another_ledger_in_place_of_one_is_noticed(tmp_path):
    file = fill(tmp_path)
    (tmp_path / "other").mkdir()
    shutil.copy(fill(tmp_path / "other"), file)
    with pytest.raises(LedgerError, match="it is another ledger, whose first row is"):
        open_ledger(tmp_path)


def test_a_ledger_that_is_ahead_of_its_note_opens(tmp_path):
    """As after a kill between the row and the note."""
    note = fill(tmp_path, rounds=2).with_name("ledger.db.head")
    earlier = note.read_bytes()
    fill(tmp_path, rounds=4)
    note.write_bytes(earlier)
    with open_ledger(tmp_path) as ledger:
        assert ledger.accounts.clients.rounds == 4
    note.write_bytes(b"")
    with pytest.raises(LedgerError, match=r"Expected .*ledger\.db\.head to be JSON.*Restore the newest copy of both"):
        open_ledger(tmp_path)
