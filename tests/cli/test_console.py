import io
import json
import math
import sys

import pytest

from tacit.cli._console import align, note, print_json
from tacit.cli._progress import track


def test_numbers_that_json_does_not_have_are_null(capsys) -> None:
    print_json({"epsilon": math.inf, "curve": (0.5, math.nan, [-math.inf]), "name": "ε", "rounds": 3, "proved": True})
    out = capsys.readouterr().out
    assert "ε" in out
    found = json.loads(out, parse_constant=lambda name: f"not JSON: {name}")
    assert found == {"epsilon": None, "curve": [0.5, None, [None]], "name": "ε", "rounds": 3, "proved": True}


def test_lines_are_aligned_without_spaces_at_their_ends() -> None:
    rows = [("a", "long name", "x"), ("bb", "b", "10")]
    assert align(rows) == ["a   long name   x", "bb  b          10"]
    assert align(rows, left=3) == ["a   long name  x", "bb  b          10"]


def test_steps_pass_through_a_bar_on_a_terminal_and_lines_elsewhere(capsys, monkeypatch) -> None:
    assert [*track("abc", 3, "client")] == ["a", "b", "c"]
    assert capsys.readouterr().err == "client 3/3\n"
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert [*track("abc", 3, "client")] == ["a", "b", "c"]
    assert "3/3" in capsys.readouterr().err


def test_a_reader_of_progress_who_leaves_ends_no_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """`tacit run … 2>&1 | head`: the run goes on without its progress."""

    class Gone(io.StringIO):
        def write(self, _: str) -> int:
            raise BrokenPipeError

    monkeypatch.setattr(sys, "stderr", Gone())
    note("round 1")
    note("round 2")
    assert not isinstance(sys.stderr, Gone)
    sys.stderr.close()
