"""Bytes per client take little room in `rounds.jsonl` and are read back as they were."""

from dataclasses import asdict, replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tacit
from tacit.core import Report
from tacit.core.serialization import Source, write_json
from tacit.errors import RunError
from tacit.runs.directory import ROUNDS, read_rounds
from tacit.runs.repetitions import shorten, with_all_bytes

SOURCE = Source(label="line 1", error=RunError, advice="Start anew.")


def report(up: tuple[int, ...], clients: int | None = None) -> Report:
    count = len(up) if clients is None else clients
    return Report(1, tuple(range(count)), (), up, up, None, None, None, {}, 0.0)


@settings(deadline=None)
@given(st.lists(st.integers(0, 3), max_size=30))
def test_what_is_shortened_is_read_back(numbers: list[int]) -> None:
    whole = report(tuple(numbers))
    short = tuple(shorten(numbers))
    assert with_all_bytes(replace(whole, up=short, down=short), SOURCE) == whole
    assert len(short) <= 2 * len(numbers)


def test_a_large_round_is_a_short_line(tmp_path: Path) -> None:
    whole = report((1593,) * 100_000)
    line = write_json({**asdict(whole), "up": shorten(whole.up), "down": shorten(whole.down)})
    clients = write_json({"clients": whole.clients})
    assert len(line) < len(clients) + 500
    (tmp_path / ROUNDS).write_bytes(line)
    assert read_rounds(tmp_path) == (whole,)


def test_a_number_for_every_client_is_read_as_it_is(tmp_path: Path) -> None:
    whole = report((7, 7, 5))
    (tmp_path / ROUNDS).write_bytes(write_json(asdict(whole)))
    assert read_rounds(tmp_path) == (whole,)


@pytest.mark.parametrize("up", [(7, -(10**15)), (7, -2), (-3, 7), (7, -1, -2), (-3,)])
def test_other_numbers_of_clients_are_refused_before_they_take_memory(up: tuple[int, ...]) -> None:
    with pytest.raises(RunError, match="Expected line 1 to have the bytes of 3 clients"):
        with_all_bytes(report(up, clients=3), SOURCE)


def test_a_run_is_stored_short(tmp_path: Path) -> None:
    task = tacit.tasks.make_task("digits")
    run = tacit.train(
        tacit.methods.fedavg(rounds=1, cohort=50), task, workers=1, out=tmp_path / "run", randomness="seeded"
    )
    assert '"up": [' + f"{run.history[0].up[0]}, -50]" in (tmp_path / "run" / ROUNDS).read_text()
    assert read_rounds(tmp_path / "run")[0].up == run.history[0].up
