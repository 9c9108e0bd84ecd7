import json
from dataclasses import replace

import pytest

from report.comparisons import make, row
from tacit.errors import UserError
from tacit.report.comparison import Comparison
from tacit.report.rankings import Order
from tacit.report.tables import remarks, table


@pytest.mark.parametrize(
    ("quantity", "ours", "paper", "proved", "verdict"),
    [
        ("accuracy", (0.8, 0.78), 0.78, True, "reached"),
        ("accuracy", (0.8, 0.75), 0.78, True, "missed"),
        ("accuracy", (0.78,), 0.78, False, "reached"),
        ("accuracy", (0.1, 0.2, 0.3, 0.6), 0.3, True, "reached"),
        ("accuracy", (0.7799,), 0.78, True, "missed"),
        ("rounds", (11, 11), 11, True, "reached"),
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
def test_verdicts_are_of_the_mean_and_know_which_way_is_better(quantity, ours, paper, proved, verdict):
    made = row(*({quantity: value} for value in ours), paper={quantity: paper}, proved=proved)
    assert made.verdict(quantity) == verdict
    assert made.verdict("other") == ""
    assert make(made, fast=True).verdict(made, quantity) == ""


def test_what_one_seed_lacks_is_not_measured():
    assert row({"accuracy": 0.5}, {"accuracy": None}).ours("accuracy") is None


def test_a_document_can_be_read_again():
    made = make(row({"accuracy": 0.8, "epsilon": None}, paper={"accuracy": 0.78}), y=("accuracy",))
    again = Comparison.from_bytes(made.to_bytes(), "saved")
    assert again.to_bytes() == made.to_bytes()
    assert again.rows[0].verdict("accuracy") == "reached"
    (compared, _) = json.loads(made.to_bytes())["rows"][0]["compared"]
    ours = {"mean": 0.8, "least": 0.8, "most": 0.8}
    assert compared == {"quantity": "accuracy", "paper": 0.78, "ours": ours, "verdict": "reached"}


def test_what_was_measured_before_is_joined_and_what_is_new_counts():
    first, second = row({"rounds": 2, "accuracy": 0.7}, {"rounds": 3, "accuracy": 0.6}), row({"accuracy": 0.9})
    before = replace(make(replace(first, spent=False), row({}, name="gone")), versions={"torch": "1", "python": "3"})
    now = replace(make(row({}, name="new"), second), versions={"torch": "2", "python": "3"})
    joined = now.joined(before, ["a row", "new"])
    assert joined.versions == {"torch": "1, 2", "python": "3"}
    assert [each.name for each in joined.rows] == ["a row", "new", "gone"]
    assert joined.rows[0].by_seed("accuracy") == {0: 0.9, 1: 0.6}
    assert not joined.rows[0].spent  # as the longest run has it


@pytest.mark.parametrize("content", [b"", b"[]", b"{}", b'{"format": 9}', b'{"format": 1}', b"\xff"])
def test_other_files_are_refused_in_one_sentence(content):
    with pytest.raises(UserError, match=r"^Expected that\.json to .*\.$"):
        Comparison.from_bytes(content, "that.json")


def test_the_table_names_a_row_once_and_tells_misses():
    made = make(row({"accuracy": 0.7, "loss": 2.0, "delta": 1e-7}, paper={"accuracy": 0.78, "delta": 1e-3}))
    head, first, second = table(made)
    assert head[-1] == "verdict"
    assert first == ["a row", "accuracy", "0.78", "0.7", "", "1", "missed"]
    assert second == ["", "δ at the budget's ε (nominal)", "0.001", "1e-07", "", "1", "no guarantee"]


def test_with_columns_there_is_a_line_per_row_and_the_papers_number_beside_ours():
    paper = {"best_accuracy": 0.82, "best_round": 200, "cost_up": 110.88}
    one = row({"best_accuracy": 0.8, "best_round": 195, "cost_up": 108.1, "kilobytes_up": 108.4}, paper=paper)
    two = row({"best_accuracy": 0.8}, {"best_accuracy": 0.86}, name="another", paper={"best_accuracy": 0.82})
    columns = ("best_accuracy", "best_round", "cost_up", "kilobytes_up")
    head, first, second = table(replace(make(one, two), columns=columns))
    assert head == ["row", "best accuracy", "paper", "at round", "paper", "cost up", "paper", "kB up", "verdict"]
    assert first == ["a row", "0.8", "0.82", "195", "200", "108.1", "110.9", "108.4", "missed: best accuracy"]
    assert second == ["another", "0.83 ±0.03", "0.82", "", "", "", "", "", "reached"]
    words = "\n".join(remarks(replace(make(one), columns=columns)))
    assert "best accuracy; at round: the best of all rounds that were measured, chosen on the test data." in words
    assert "kB up: bytes per client up to the best round" in words


def test_a_nominal_epsilon_is_called_so():
    made = replace(make(row({"epsilon": 1.0}), row({"epsilon": 1.0}, proved=True)), columns=("epsilon",))
    assert [line[1] for line in table(made)] == ["ε", "1 nominal", "1"]


def test_what_stands_in_for_other_data_is_not_judged():
    made = replace(make(row({"accuracy": 0.9}, paper={"accuracy": 0.8})), stand_in="Other patients.")
    assert made.verdict(made.rows[0], "accuracy") == ""
    assert next(remarks(made)) == "Stand-in: Other patients."
    assert Comparison.from_bytes(made.to_bytes(), "saved").stand_in == "Other patients."


def test_documents_from_before_there_were_columns_can_be_read():
    made = make(row({"accuracy": 0.8}))
    older = {key: value for key, value in made.to_json().items() if key not in ("columns", "stand_in")}
    assert Comparison.from_bytes(json.dumps(older).encode(), "saved").to_bytes() == made.to_bytes()


def test_the_remarks_tell_the_guarantee_and_the_bytes():
    made = make(row({"cost": 550, "up": 2_500_000, "down": 1_000_000}))
    words = "\n".join(remarks(made))
    assert "Guarantee: none: it is a test." in words
    assert "550 messages" in words
    assert "2.5 MB up and 1 MB down" in words
    assert "fedavg rounds=2" in words


def test_orders_are_told_with_their_numbers():
    """Two seeds that both rows have; one says so, the other does not."""
    low, high = (
        row({"accuracy": 0.5}, {"accuracy": 0.9}, name="low"),
        row({"accuracy": 0.6}, {"accuracy": 0.86}, name="high"),
    )
    below, near = Order(rows=("low", "high"), place="Figure 9"), Order(rows=("low", "high"), place="P", within=0.05)
    assert below.told((low, high)) == (
        "Figure 9: low < high in accuracy: reached, 0.7000 and 0.7300; so in 1 of 2 seeds"
    )
    assert below.told((replace(high, name="low"), replace(low, name="high"))).startswith(
        "Figure 9: low < high in accuracy: missed"
    )
    assert "P: low ≈ high in accuracy: reached" in near.told((low, high))
    assert replace(near, within=0.01).told((low, high)).endswith("missed, 0.7000 and 0.7300; so in 0 of 2 seeds")
    assert below.told((low,)) == "Figure 9: low < high in accuracy: not measured"
    made = replace(make(low, high), orders=(below, near))
    assert any(line.startswith("Figure 9: low < high") for line in remarks(made))
    assert not any(line.startswith("Figure 9") for line in remarks(replace(made, fast=True)))
    assert Comparison.from_bytes(made.to_bytes(), "saved").orders == (below, near)
