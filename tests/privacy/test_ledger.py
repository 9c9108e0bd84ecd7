import json
import multiprocessing
import os
import random
import resource
import shutil
import signal
import sqlite3
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import dp_accounting as dp
import pytest

from tacit.errors import BudgetError, LedgerError, StorageError
from tacit.privacy.accountants import RUNNING, Adjacency, Pld, Rdp
from tacit.privacy.accounting import Accounting, Budget
from tacit.privacy.ledger import Ledger

BUDGET = Budget(2.0, 1e-5)
EVENT = dp.PoissonSampledDpEvent(0.1, dp.GaussianDpEvent(2.0))
OTHER = dp.SampledWithoutReplacementDpEvent(100, 10, dp.GaussianDpEvent(9.0))


def opened(path: Path, budget: Budget | None = BUDGET) -> Ledger:
    return Ledger.open(path / "ledger.db", budget, Rdp())


def filled(path: Path, rounds: int = 4) -> Path:
    with opened(path) as ledger:
        for number in range(1, rounds + 1):
            ledger.release(ledger.reserve("run", number, EVENT), f"digest {number}")
    return path / "ledger.db"


def tamper(file: Path, *statements: str) -> None:
    connection = sqlite3.connect(file)
    with connection:
        for statement in statements:
            connection.execute(statement)
    connection.close()


def test_all_runs_draw_on_one_budget(tmp_path):
    with opened(tmp_path) as ledger:
        allowed = ledger.rounds_left(EVENT)
        for number in range(1, allowed):
            ledger.reserve("one", number, EVENT)
    with opened(tmp_path) as ledger:
        assert ledger.spent.rounds == allowed - 1
        ledger.reserve("other", 1, EVENT, label="the last that fits")
        with pytest.raises(BudgetError, match=r"Round 2 of other would pass the budget of ε = 2 at δ = 1e-05: ε = 1.9"):
            ledger.reserve("other", 2, EVENT)
        assert ledger.spent.rounds == allowed
        assert ledger.spent.epsilon(1e-5) <= 2 < ledger.spent.charge(EVENT).epsilon(1e-5)
        assert ledger.rounds_left(EVENT) == 0


def test_what_was_spent_is_the_book_of_all_events(tmp_path):
    with opened(tmp_path) as ledger:
        ledger.reserve("a", 1, EVENT)
        ledger.reserve("b", 1, OTHER)
        ledger.reserve("a", 2, EVENT)
        kept = ledger.spent.epsilon(1e-5)
    with opened(tmp_path, None) as ledger:
        assert ledger.budget == BUDGET
        assert ledger.spent.epsilon(1e-5) == pytest.approx(kept)
        assert kept == pytest.approx(Accounting.of(Rdp(), [EVENT, OTHER, EVENT]).epsilon(1e-5))
        assert [(entry.run, entry.round) for entry in ledger.entries] == [("a", 1), ("b", 1), ("a", 2)]


def test_the_same_round_again_costs_nothing_and_another_event_is_refused(tmp_path):
    with opened(tmp_path) as ledger:
        first = ledger.reserve("run", 1, EVENT)
    with opened(tmp_path) as ledger:
        assert ledger.reserve("run", 1, EVENT) == first
        assert ledger.spent.rounds == 1
        with pytest.raises(LedgerError, match="begin a new run"):
            ledger.reserve("run", 1, OTHER)
        assert ledger.spent.rounds == 1


DEARER, DEAREST = (dp.PoissonSampledDpEvent(0.1, dp.GaussianDpEvent(noise)) for noise in (1.5, 1.2))


def test_a_reserved_round_may_turn_out_to_cost_more_but_never_less(tmp_path):
    with opened(tmp_path) as ledger:
        ledger.reserve("run", 1, EVENT)
        promised = ledger.reserve("run", 2, EVENT)
        dearer = ledger.amend(promised, DEARER)
        spent = ledger.spent.epsilon(1e-5)
        assert spent == pytest.approx(Accounting.of(Rdp(), [EVENT, DEARER]).epsilon(1e-5))
        assert ledger.spent.rounds == 2
        assert ledger.amend(dearer, EVENT) == dearer  # no refunds
        assert ledger.amend(promised, DEARER) == dearer
        assert ledger.spent.epsilon(1e-5) == spent
    with opened(tmp_path) as ledger:
        assert ledger.spent.epsilon(1e-5) == pytest.approx(spent)
        assert ledger.reserve("run", 2, EVENT) == dearer  # as it was promised: a run that goes on asks so
        assert ledger.reserve("run", 2, DEARER) == dearer
        with pytest.raises(LedgerError, match="begin a new run"):
            ledger.reserve("run", 2, OTHER)
        assert ledger.release(dearer, "abc").digest == "abc"
        with pytest.raises(LedgerError, match="begin a new run"):
            ledger.amend(dearer, DEAREST)  # it is released: too late
        assert ledger.spent.epsilon(1e-5) == pytest.approx(spent)


def test_a_dearer_round_that_passes_the_budget_changes_nothing(tmp_path):
    with opened(tmp_path) as ledger:
        first = ledger.reserve("run", 1, EVENT)
        with pytest.raises(BudgetError, match="would pass the budget"):
            ledger.amend(first, dp.GaussianDpEvent(0.5))
        assert ledger.entries == (first,)
        assert ledger.spent.epsilon(1e-5) == pytest.approx(Accounting.of(Rdp(), [EVENT]).epsilon(1e-5))


def test_a_round_is_released_once_and_only_if_reserved(tmp_path):
    with opened(tmp_path) as ledger:
        entry = ledger.reserve("run", 1, EVENT)
        released = ledger.release(entry, "abc")
    with opened(tmp_path) as ledger:
        assert ledger.release(entry, "abc") == released == ledger.entries[0]
        with pytest.raises(LedgerError, match="already released with other content"):
            ledger.release(entry, "def")
        with pytest.raises(LedgerError, match="never reserved"):
            ledger.release(type(entry)("run", 2, entry.event), "abc")


def test_a_release_without_noise_passes_every_budget(tmp_path):
    with opened(tmp_path) as ledger, pytest.raises(BudgetError):
        ledger.reserve("run", 1, dp.GaussianDpEvent(0.0))


def test_the_ledger_of_other_runs_is_noticed(tmp_path):
    filled(tmp_path)
    with opened(tmp_path) as ledger:
        ledger.check_covers("run", 4)
        ledger.check_covers("new", 0)
        with pytest.raises(LedgerError, match="round 5 of run was never charged"):
            ledger.check_covers("run", 5)


def test_the_terms_of_a_ledger_stand(tmp_path):
    file = filled(tmp_path)
    with pytest.raises(LedgerError, match="has a budget of ε = 2 at δ = 1e-05, not of ε = 3"):
        Ledger.open(file, Budget(3, 1e-5))
    for by in (Pld(), Rdp(Adjacency.REPLACE_ONE)):
        with pytest.raises(LedgerError, match="is kept by rdp for add-or-remove"):
            Ledger.open(file, BUDGET, by)
    with pytest.raises(LedgerError, match="Give its budget"):
        Ledger.open(tmp_path / "new.db")
    with Ledger.open(tmp_path / "new.db", BUDGET) as ledger:
        assert ledger.spent.accountant == RUNNING


def test_a_second_holder_is_refused_until_the_first_lets_go(tmp_path):
    with opened(tmp_path), pytest.raises(LedgerError, match="held by another process"):
        opened(tmp_path)
    opened(tmp_path).close()


def hold(path: Path) -> subprocess.Popen[str]:
    code = """
        import os, sys, time
        from pathlib import Path
        from tacit.privacy.ledger import Ledger
        from tacit.privacy.accounting import Budget
        ledger = Ledger.open(Path(sys.argv[1]), Budget(2.0, 1e-5))
        if os.fork() == 0:  # a worker that outlives its parent
            time.sleep(4)
            os._exit(0)
        print("held", flush=True)
        time.sleep(60)
    """
    child = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code), str(path)], stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "held\n"
    return child


def test_a_killed_holder_lets_go(tmp_path):
    file = tmp_path / "ledger.db"
    with hold(file) as child:
        with pytest.raises(LedgerError, match="held by another process"):
            Ledger.open(file)
        child.send_signal(signal.SIGKILL)
    Ledger.open(file).close()


def _use(ledger: Ledger, answers: "multiprocessing.Queue[str]") -> None:
    try:
        ledger.reserve("child", 1, EVENT)
    except LedgerError as error:
        answers.put(str(error))
    ledger.close()


def test_a_forked_process_may_neither_write_nor_let_go(tmp_path):
    context = multiprocessing.get_context("fork")
    with opened(tmp_path) as ledger:
        answers = context.Queue()
        child = context.Process(target=_use, args=(ledger, answers))
        child.start()
        assert "belongs to the process that opened it" in answers.get(timeout=30)
        child.join()
        with pytest.raises(LedgerError, match="held"):
            opened(tmp_path)
        ledger.reserve("run", 1, EVENT)


@pytest.mark.parametrize(
    ("statements", "words"),
    [
        (["UPDATE rows SET body = replace(body, '2.0', '9.0') WHERE number = 3"], "row 3 was changed"),
        (["UPDATE rows SET body = replace(body, '2.0', '90.0') WHERE number = 0"], "row 0 was changed"),
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
def test_whatever_is_done_to_the_rows_is_noticed(tmp_path, statements, words):
    file = filled(tmp_path)
    tamper(file, *statements)
    with pytest.raises(LedgerError, match=words):
        opened(tmp_path)


@pytest.mark.parametrize("share", [0.99, 0.7, 0.5, 0.3, 0.1])
def test_a_truncated_file_is_noticed(tmp_path, share):
    file = filled(tmp_path, 30)
    content = file.read_bytes()
    file.write_bytes(content[: int(len(content) * share)])
    with pytest.raises(LedgerError, match="not as it was written"):
        opened(tmp_path)


@pytest.mark.parametrize("content", [b"not a database at all" * 100, b"SQLite format 3\0" + b"\xff" * 5000])
def test_other_files_are_refused(tmp_path, content):
    (tmp_path / "ledger.db").write_bytes(content)
    with pytest.raises(LedgerError, match="not as it was written"):
        opened(tmp_path)
    assert (tmp_path / "ledger.db").read_bytes() == content


def test_flipped_bytes_never_lower_what_was_spent(tmp_path):
    file = filled(tmp_path, 20)
    with opened(tmp_path) as ledger:
        spent = ledger.spent.epsilon(1e-5)
    content, generator = file.read_bytes(), random.Random(0)
    for _ in range(60):
        place = generator.randrange(len(content))
        file.write_bytes(
            content[:place] + bytes([content[place] ^ (1 << generator.randrange(8))]) + content[place + 1 :]
        )
        try:
            with opened(tmp_path) as ledger:
                assert ledger.spent.epsilon(1e-5) == pytest.approx(spent)
        except LedgerError:
            pass


def test_places_that_cannot_be_written(tmp_path):
    for place in (tmp_path / "missing" / "ledger.db", tmp_path, Path("/proc/ledger.db")):
        with pytest.raises(StorageError, match="Could not write"):
            Ledger.open(place, BUDGET)


def test_a_read_only_ledger_is_refused_before_anything_is_released(tmp_path):
    file = filled(tmp_path)
    connection = sqlite3.connect(f"file:{file}?mode=ro", uri=True, isolation_level=None)
    ledger = Ledger(file, connection)
    with ledger._guarded():
        ledger._begin(None, None)
    with ledger, pytest.raises(StorageError, match="readonly"):
        ledger.reserve("run", 5, EVENT)
    assert ledger.spent.rounds == 4


def _fill_until_full(file: str, answers: "multiprocessing.Queue[object]") -> None:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    ledger = Ledger.open(Path(file), BUDGET, Rdp())
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
    done = 0
    try:
        while True:
            ledger.reserve("run", done + 1, dp.PoissonSampledDpEvent(0.001, dp.GaussianDpEvent(50.0)), "x" * 500)
            done += 1
    except Exception as error:
        answers.put((type(error).__name__, str(error), done, ledger.spent.rounds))


def test_a_full_disk_stops_before_the_release(tmp_path):
    context = multiprocessing.get_context("spawn")
    answers = context.Queue()
    child = context.Process(target=_fill_until_full, args=(str(tmp_path / "ledger.db"), answers))
    child.start()
    name, said, done, rounds = answers.get(timeout=60)
    child.join()
    assert (name, rounds) == ("StorageError", done)
    assert "Nothing was released" in said
    assert done > 3
    with opened(tmp_path) as ledger:
        assert ledger.spent.rounds in (done, done + 1)  # never less than what was promised


def _train(folder: Path, run: str) -> None:
    """Reserve, release, mark, for as long as it is allowed to live."""
    event = dp.PoissonSampledDpEvent(0.01, dp.GaussianDpEvent(20.0))
    with opened(folder) as ledger, (folder / f"{run}.released").open("a") as released:
        for number in range(1, 100_000):
            entry = ledger.reserve(run, number, event)
            if entry.digest is None:
                released.write(f"{number}\n")
                released.flush()
            ledger.release(entry, f"digest {number}")


def _lines(file: Path) -> int:
    return file.read_text().count("\n") if file.exists() else 0


def test_kills_at_random_points(tmp_path):
    """Released implies charged, and what was spent never decreases; resumed rounds are not charged again."""
    generator, charged, context = random.Random(1), 0, multiprocessing.get_context("fork")
    for kill in range(30):
        run = f"run {kill // 4}"  # some resume, some begin anew
        child = context.Process(target=_train, args=(tmp_path, run))
        before = _lines(tmp_path / f"{run}.released")
        child.start()
        while kill % 4 and child.is_alive() and _lines(tmp_path / f"{run}.released") < before + 2:
            time.sleep(0.001)  # however busy the machine is; every fourth is killed wherever it may be
        time.sleep(generator.uniform(0, 0.1))
        assert child.is_alive()
        child.kill()
        child.join()
        with opened(tmp_path) as ledger:
            assert ledger.spent.rounds >= charged
            charged = ledger.spent.rounds
            kept = {(entry.run, entry.round) for entry in ledger.entries}
        assert len(kept) == charged
        for file in tmp_path.glob("*.released"):
            numbers = [int(line) for line in file.read_text().split("\n")[:-1]]
            assert {(file.stem, number) for number in numbers} <= kept
            assert len(numbers) <= len(set(numbers)) + kill  # a round that was not marked is released again, the same
    assert charged > 30


def test_a_copy_in_the_middle_of_a_transaction_is_rolled_back(tmp_path):
    """What a crash of the machine may leave: the file and its journal, as they were at some instant."""
    filled(tmp_path)
    crashed = tmp_path / "crashed"
    crashed.mkdir()
    with opened(tmp_path) as ledger:
        ledger._connection.execute("PRAGMA cache_size = 1")
        ledger._connection.execute("BEGIN IMMEDIATE")
        ledger._connection.execute("UPDATE rows SET body = body || 'x'")
        ledger._connection.execute("PRAGMA cache_spill = 1")
        for file in tmp_path.glob("ledger.db*"):
            shutil.copy(file, crashed / file.name)
        ledger._connection.execute("ROLLBACK")
    with opened(crashed) as ledger:
        assert ledger.spent.rounds == 4


def test_rows_are_plain_json(tmp_path):
    file = filled(tmp_path, 1)
    connection = sqlite3.connect(file)
    bodies = [json.loads(body) for (body,) in connection.execute("SELECT body FROM rows ORDER BY number")]
    connection.close()
    assert [body["kind"] for body in bodies] == ["budget", "reserve", "release"]
    assert json.loads(bodies[1]["event"])["event"] == {"kind": "gaussian", "noise": 2.0}
    assert os.path.getsize(file) < 50_000
