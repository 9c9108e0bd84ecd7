"""The page that shows all tables and figures at a glance says what the saved results say."""

import json
import runpy
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tacit.papers.study_files import packaged_studies, study_files

EXPERIMENTS = Path(__file__).resolve().parents[2] / "experiments"


@cache
def overview() -> dict[str, Any]:
    return runpy.run_path(str(EXPERIMENTS / "overview.py"))


@cache
def text() -> str:
    return str(overview()["text"]())


def line_of(study: str) -> str:
    return next(line for line in text().splitlines() if f"`{study}`" in line)


def test_the_page_is_generated_from_the_saved_results() -> None:
    assert text() in (EXPERIMENTS / "README.md").read_text(), "Run python experiments/overview.py --write."


def test_every_study_and_every_saved_result_is_listed() -> None:
    listed = {f"{paper}/{item.study}" for paper, items in overview()["PAPERS"].items() for item in items}
    assert set(study_files(packaged_studies())) == listed
    saved = {json.loads(file.read_text())["name"] for file in EXPERIMENTS.glob("*/results/*.json")}
    assert saved <= listed


@pytest.mark.parametrize(
    ("study", "counts"),
    [
        ("fl-top/table-2", ["33 not comparable"]),
        ("fl-top/table-6", ["**not run**", "52 runs"]),
        ("priority/figure-7", ["1 missed (ranking)"]),
        ("esmfl/at-once", ["1 missed"]),
    ],
)
def test_misses_and_what_was_not_run_are_shown(study: str, counts: list[str]) -> None:
    assert all(count in line_of(study) for count in counts)


def test_rows_are_judged_as_their_saved_verdicts() -> None:
    """Counted again from the file, without the code that reads it."""
    rows = json.loads((EXPERIMENTS / "fl-top/results/table-1.json").read_text())["rows"]
    judged = [each["verdict"] for row in rows for each in row["compared"] if each["quantity"] == "best_accuracy"]
    assert judged.count("missed") > 0
    for verdict in ("reached", "missed"):
        assert f"{judged.count(verdict)} {verdict}" in line_of("fl-top/table-1")
