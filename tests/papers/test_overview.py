"""The page that shows all tables and figures at a glance says what the saved results say."""

import importlib
import json
import re
import runpy
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tacit.errors import UserError
from tacit.papers.study_files import studies_folder, study_files

EXPERIMENTS = Path(__file__).resolve().parents[2] / "experiments"
PAGES = [page for page in sorted(EXPERIMENTS.rglob("*.md")) if page.parent != EXPERIMENTS]
COMPARED = re.compile(
    r"\b(?:better|worse|(?:more|less) accurate|ahead|behind|leads?|gains?|loses?|reach(?:es|ed)|higher|lower|equals?)\b"
    r"[^.|]*\d"
)
EQUATED = re.compile(r"\b(?:no difference|as good as|as accurate as|equals|no worse than)\b")
RANKED = re.compile(r"\b(?:better|worse|more accurate|less accurate) than\b")
ENOUGH = re.compile(r"\b(?:eight|nine|ten|8|9|10) seeds\b|cannot show|not shown|no lead|undecided")
OPEN = re.compile(r"\bnot\b|\bno\b|undecided|cannot")
FILE = re.compile(r"[\w-]+\.json\b")


@cache
def claims() -> ModuleType:
    """The module beside the script, which imports it by its name."""
    sys.path.insert(0, str(EXPERIMENTS))
    return importlib.import_module("claims")


@cache
def overview() -> dict[str, Any]:
    claims()
    return runpy.run_path(str(EXPERIMENTS / "overview.py"))


@cache
def text() -> str:
    return str(overview()["text"]())


def line_of(study: str) -> str:
    return next(line for line in text().splitlines() if f"`{study}`" in line)


def test_the_page_is_generated_from_the_saved_results() -> None:
    page = (EXPERIMENTS / "README.md").read_text()
    assert all(part() in page for part in overview()["PARTS"].values()), "Run python experiments/overview.py --write."
    assert page.split("\n\n")[2].startswith("**What may be concluded.**")


def test_every_study_and_every_saved_result_is_listed() -> None:
    listed = {f"{paper}/{item.study}" for paper, items in overview()["PAPERS"].items() for item in items}
    assert set(study_files(studies_folder())) == listed
    saved = {json.loads(file.read_text())["name"] for file in EXPERIMENTS.glob("*/results/*.json")}
    assert saved <= listed


@pytest.mark.parametrize(
    ("study", "counts"),
    [
        ("fl-top/table-2", ["33 not comparable"]),
        ("fl-top/table-6", ["**not run**", "52 runs"]),
        ("priority/figure-7", ["1 missed (ranking)"]),
        ("esmfl/at-once", ["1 missed"]),
        ("geyer/table-1", ["7 reached with more messages", "4 missed", "3 reached"]),
        ("fl-top/figure-1", ["one seed"]),
    ],
)
def test_misses_and_what_was_not_run_are_shown(study: str, counts: list[str]) -> None:
    assert all(count in line_of(study) for count in counts)


def test_rows_are_judged_as_their_saved_verdicts() -> None:
    """Counted again from the file, without the code that reads it."""
    rows = json.loads((EXPERIMENTS / "fl-top/results/table-1.json").read_text())["rows"]
    judged = [each["verdict"] for row in rows for each in row["compared"] if each["quantity"] == "best_accuracy"]
    assert judged.count("missed") > 0
    for verdict in ("within reach", "missed"):
        assert f"{judged.count(verdict)} {verdict}" in line_of("fl-top/table-1")


def test_no_saved_row_is_reached_with_fewer_than_three_seeds() -> None:
    """Counted in the files: ε and δ follow from the settings, whatever the seed is."""
    for file in EXPERIMENTS.glob("*/results/*.json"):
        for row in json.loads(file.read_text())["rows"]:
            found = [each["quantity"] for each in row["compared"] if each["verdict"] == "reached"]
            assert len(row["trials"]) >= 3 or set(found) <= {"epsilon", "delta"}, f"{file}: {row['name']}"


def test_every_claim_has_the_state_that_its_evidence_supports() -> None:
    module = claims()
    for claim in module.read_claims():
        findings = [each.finding() for each in claim.evidence]
        assert claim.supported(findings), claim.says
        assert all("seed" in each.text or each.verdict in ("proved", "not run") for each in findings)
        for state in set(module.HEADS) - {claim.state}:  # no evidence supports a better state than its own
            other = replace(claim, state=state)
            assert not other.supported(findings) or {claim.state, state} in ({"tuned", "holds"}, {"tuned", "fails"})
            if state in ("holds", "open") and claim.state != "tuned":
                with pytest.raises(UserError):
                    other.text()


@pytest.mark.parametrize(("verdict", "seeds"), [("reached", 2), ("within reach", 1), ("undecided", 10), ("not run", 0)])
def test_too_few_seeds_decide_nothing(verdict: str, seeds: int) -> None:
    module = claims()
    finding = module.Finding(verdict, "text", seeds)
    claim = module.Claim("A", "b", "holds", ())
    assert [replace(claim, state=state).supported([finding]) for state in module.HEADS] == [False, False, False, True]


def test_a_figure_that_its_page_does_not_show_is_no_evidence() -> None:
    evidence = claims().Evidence(file="a.json", page="frontier/README.md", shown="0.9999 ± 0.0001", seeds=10)
    with pytest.raises(UserError, match=r"0\.9999 ± 0\.0001 in frontier/README\.md"):
        evidence.finding()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(EXPERIMENTS)))
def test_what_is_compared_names_its_file(page: Path) -> None:
    """In its part of the page, down to the next heading of the same level."""
    parts = re.split(r"^## ", page.read_text(), flags=re.MULTILINE)[1:]
    without = [part.splitlines()[0] for part in parts if COMPARED.search(part) and not FILE.search(part)]
    assert not without
    named = {name for part in parts for name in FILE.findall(part)}
    saved = {file.name for file in EXPERIMENTS.rglob("*.json")}
    assert named - {"guarantee.json"} <= saved


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(EXPERIMENTS)))
def test_prose_equates_with_eight_seeds_and_ranks_with_more_than_one(page: Path) -> None:
    paragraphs = re.split(r"\n\n|\n(?=- )", page.read_text())
    equated = [each for each in paragraphs if EQUATED.search(each) and not ENOUGH.search(each)]
    sentences = [sentence for each in paragraphs for sentence in re.split(r"(?<=[.:;])\s", each)]
    ranked = [each for each in sentences if RANKED.search(each) and "one seed" in each and not OPEN.search(each)]
    assert not equated + ranked


def test_claims_of_too_few_seeds_are_found() -> None:
    assert EQUATED.search("A vote is as good as public data (three seeds).")
    assert not ENOUGH.search("A vote is as good as public data (three seeds).")
    assert RANKED.search("With one seed, a vote is better than chance.")


def test_figures_of_the_pages_are_those_of_several_keys() -> None:
    claims()  # scripts of the folder are imported by their names
    keys, trials = importlib.import_module("keys"), importlib.import_module("trials")
    saved = trials.TrialFile.open(keys.RESULTS)
    for figure in keys.FIGURES:
        assert len([trial for trial in figure.trials() if saved.get(trial)]) == figure.keys >= 3
        assert keys.text(figure, saved) in (EXPERIMENTS.parent / figure.page).read_text()
