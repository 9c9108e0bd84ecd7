import json
from dataclasses import replace
from pathlib import Path

import pytest

from papers.comparisons import make, row
from tacit.errors import UserError
from tacit.papers.comparison import Comparison, Ranking
from tacit.papers.study_files import studies_folder, study_files


@pytest.mark.parametrize(
    ("quantity", "ours", "paper", "proved", "verdict"),
    [
        ("accuracy", (0.8, 0.78), 0.78, True, "within reach"),
        ("accuracy", (0.8, 0.75), 0.78, True, "missed"),
        ("accuracy", (0.78,), 0.78, False, "within reach"),
        ("accuracy", (0.1, 0.2, 0.3, 0.6), 0.3, True, "undecided"),
        ("accuracy", (0.79, 0.8, 0.81), 0.77, True, "reached"),
        ("accuracy", (0.79, 0.8, 0.81), 0.78, True, "undecided"),  # 0.800 ± 0.025
        ("accuracy", (0.79, 0.8, 0.81), 0.82, True, "undecided"),  # worse in the mean, and not decided either
        ("accuracy", (0.79, 0.8, 0.81), 0.83, True, "missed"),
        ("rmse", (0.79, 0.8, 0.81), 0.83, True, "reached"),
        ("rmse", (0.79, 0.8, 0.81), 0.77, True, "missed"),
        ("accuracy", (0.7799,), 0.78, True, "missed"),
        ("rounds", (11, 11), 11, True, "within reach"),
        ("rounds", (11, 11, 11), 11, True, "reached"),
        ("cost", (549, 552), 550, True, "missed"),
        ("delta", (9e-4,), 1e-3, True, "reached"),
        ("delta", (2e-3,), 1e-3, True, "missed"),
        ("delta", (9e-4,), 1e-3, False, "no guarantee"),
        ("epsilon", (None,), 8, True, "not measured"),
        ("best_accuracy", (0.8,), 0.82, True, "missed"),
        ("best_round", (200,), 100, True, ""),
        ("cost_up", (200,), 100, True, ""),
    ],
)
def test_verdicts_judge_the_interval_of_the_mean_in_the_right_direction(quantity, ours, paper, proved, verdict):
    made = row(*({quantity: value} for value in ours), paper={quantity: paper}, proved=proved)
    assert made.verdict(quantity) == verdict
    assert made.verdict("other") == ""
    assert make(made, fast=True).verdict(made, quantity) == ""


def test_a_quantity_that_one_seed_lacks_is_not_measured():
    assert row({"accuracy": 0.5}, {"accuracy": None}).spread("accuracy") is None


def test_a_saved_document_can_be_read_again():
    made = make(row({"accuracy": 0.8, "epsilon": None}, paper={"accuracy": 0.78}), y=("accuracy",))
    again = Comparison.from_bytes(made.to_bytes(), "saved")
    assert again.to_bytes() == made.to_bytes()
    assert again.rows[0].verdict("accuracy") == "within reach"
    (compared, _) = json.loads(made.to_bytes())["rows"][0]["compared"]
    ours = {"mean": 0.8, "lowest": 0.8, "highest": 0.8, "further": None}
    assert compared == {"quantity": "accuracy", "paper": 0.78, "ours": ours, "verdict": "within reach"}


def test_earlier_results_are_kept_and_new_ones_count():
    first, second = row({"rounds": 2, "accuracy": 0.7}, {"rounds": 3, "accuracy": 0.6}), row({"accuracy": 0.9})
    before = replace(make(replace(first, spent=False), row({}, name="gone")), versions={"torch": "1", "python": "3"})
    now = replace(make(row({}, name="new"), second), versions={"torch": "2", "python": "3"})
    merged = now.merged_with(before, ["a row", "new"])
    assert merged.versions == now.merged_with(merged, []).versions == {"torch": "1, 2", "python": "3"}
    assert [each.name for each in merged.rows] == ["a row", "new", "gone"]
    assert merged.rows[0].by_seed("accuracy") == {0: 0.9, 1: 0.6}
    assert not merged.rows[0].spent  # of the longest run


@pytest.mark.parametrize("content", [b"", b"[]", b"{}", b'{"format": 9}', b'{"format": 1}', b"\xff"])
def test_other_files_are_refused_in_one_sentence(content):
    with pytest.raises(UserError, match=r"^Expected that\.json to .*\.$"):
        Comparison.from_bytes(content, "that.json")


def test_other_data_than_the_paper_s_are_not_judged():
    made = replace(make(row({"accuracy": 0.9}, paper={"accuracy": 0.8})), stand_in="Other patients.")
    assert made.verdict(made.rows[0], "accuracy") == ""
    assert Comparison.from_bytes(made.to_bytes(), "saved").stand_in == "Other patients."


@pytest.mark.parametrize(
    ("differences", "below", "near"),
    [
        ([0.03, 0.04, 0.05, 0.04], "reached", "missed"),  # surely above, though within 0.05
        ([-0.03, -0.04, -0.05, -0.04], "missed", "missed"),
        ([0.01, -0.01, 0.012, -0.009], "undecided", "undecided"),  # near, but four seeds
        ([0.01, -0.01, 0.012, -0.009] * 2, "undecided", "reached"),
        ([0.01, -0.01, 0.012, -0.009, 0.01, -0.01, 0.0], "undecided", "undecided"),
        ([0.0301, 0.03], "undecided", "undecided"),  # an interval above 0, but two seeds
        ([0.3, -0.2, 0.1, -0.1], "undecided", "undecided"),
        ([0.03], "undecided", "undecided"),
    ],
)
def test_rankings_are_judged_by_paired_seeds(differences, below, near):
    """Whatever seeds have in common does not matter, and a tolerance does not hide a difference that is there."""
    common = [0.5, 0.9, 0.1, 0.7] * 2
    first = row(*({"accuracy": value} for value, _ in zip(common, differences, strict=False)), name="low")
    both = zip(common, differences, strict=False)
    second = row(*({"accuracy": value + difference} for value, difference in both), name="high")
    less = Ranking(rows=("low", "high"), place="P")
    assert f": {below}; difference" in less.describe((first, second))
    assert f": {near}; difference" in replace(less, within=0.05).describe((first, second))


def test_rankings_are_described_with_their_numbers():
    """Two seeds that both rows have; the ranking holds for one of them."""
    low, high = (
        row({"accuracy": 0.5}, {"accuracy": 0.9}, name="low"),
        row({"accuracy": 0.6}, {"accuracy": 0.86}, name="high"),
    )
    below, near = Ranking(rows=("low", "high"), place="Figure 9"), Ranking(rows=("low", "high"), place="P", within=0.05)
    assert below.describe((low, high)) == (
        "Figure 9: low < high in accuracy: undecided; difference +0.0300 (95 % interval -0.8594 to +0.9194, 2 seeds)"
    )
    assert "P: low ≈ high in accuracy: undecided" in near.describe((low, high))
    assert below.describe((low,)) == "Figure 9: low < high in accuracy: not measured"
    made = replace(make(low, high), rankings=(below, near))
    assert Comparison.from_bytes(made.to_bytes(), "saved").rankings == (below, near)


def test_committed_results_can_be_read():
    results = sorted((Path(__file__).resolve().parents[2] / "experiments").glob("*/results/*.json"))
    studies = study_files(studies_folder())
    assert results
    for file in results:
        saved = Comparison.from_bytes(file.read_bytes(), str(file))
        assert saved.name in studies
        assert (saved.plot is not None) == file.with_suffix(".png").exists()
        before, again = json.loads(file.read_bytes()), json.loads(saved.to_bytes())
        for old, new in zip(before["rows"], again["rows"], strict=True):
            assert json.dumps(old["trials"]) == json.dumps(new["trials"])  # whole numbers stay whole


@pytest.mark.parametrize("plot", ["text", 0.5, 1, [1]])
def test_a_figure_that_is_no_table_is_refused(plot: object) -> None:
    saved = {"format": 1, "name": "a/b", "title": "T", "fast": False, "versions": {}, "columns": [], "plot": plot}
    with pytest.raises(UserError):
        Comparison.from_bytes(json.dumps({**saved, "stand_in": "", "rankings": [], "rows": []}).encode(), "here")
