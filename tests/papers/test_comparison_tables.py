from dataclasses import replace

import numpy as np

from papers.comparisons import make, row
from tacit.papers.comparison import Ranking, Spread
from tacit.papers.comparison_tables import footnotes, table


def test_the_table_names_a_row_once_and_reports_misses():
    made = make(row({"accuracy": 0.7, "loss": 2.0, "delta": 1e-7}, paper={"accuracy": 0.78, "delta": 1e-3}))
    header, first, second = table(made)
    assert header[-1] == "verdict"
    assert first == ["a row", "accuracy", "0.78", "0.7", "", "one seed", "1", "missed"]
    assert second == ["", "δ at the budget's ε (nominal)", "0.001", "1e-07", "", "one seed", "1", "no guarantee"]


def test_from_three_seeds_on_the_table_says_where_one_more_seed_lies():
    seeds = ({"accuracy": 0.9}, {"accuracy": 0.92}, {"accuracy": 0.94})
    assert table(make(row(*seeds)))[1] == ["a row", "accuracy", "", "0.92", "0.9 to 0.94", "±0.099", "3", ""]
    assert table(make(row(*seeds[:2])))[1] == ["a row", "accuracy", "", "0.91", "0.9 to 0.92", "", "2", ""]
    assert table(replace(make(row(*seeds)), columns=("accuracy",)))[1][1] == "0.92 ±0.099"


def test_one_more_seed_lies_in_its_interval_19_times_of_20():
    """Of normal numbers, by their own spread, for three seeds and for five."""
    drawn = np.random.default_rng(0).normal(size=(4000, 6))
    for count in (3, 5):
        spreads = [Spread.of(values[:count].tolist()) for values in drawn]
        means, further = (np.array([getattr(each, name) for each in spreads]) for name in ("mean", "further"))
        assert 0.94 < np.mean(abs(drawn[:, 5] - means) <= further) < 0.96


def test_with_columns_there_is_a_line_per_row_and_the_paper_s_number_follows_ours():
    paper = {"best_accuracy": 0.82, "best_round": 200, "cost_up": 110.88}
    one = row({"best_accuracy": 0.8, "best_round": 195, "cost_up": 108.1, "kilobytes_up": 108.4}, paper=paper)
    two = row({"best_accuracy": 0.8}, {"best_accuracy": 0.86}, name="another", paper={"best_accuracy": 0.82})
    columns = ("best_accuracy", "best_round", "cost_up", "kilobytes_up")
    header, first, second = table(replace(make(one, two), columns=columns))
    assert header == ["row", "best accuracy", "paper", "at round", "paper", "cost up", "paper", "kB up", "verdict"]
    assert first == [
        "a row (one seed)",
        "0.8",
        "0.82",
        "195",
        "200",
        "108.1",
        "110.9",
        "108.4",
        "missed: best accuracy",
    ]
    assert second == ["another", "0.83 (0.8 to 0.86)", "0.82", "", "", "", "", "", "within reach: best accuracy"]
    text = "\n".join(footnotes(replace(make(one), columns=columns)))
    assert "best accuracy; at round: the best of all rounds that were evaluated, chosen on the test data." in text
    assert "kB up: measured bytes per client up to the best round" in text


def test_a_nominal_epsilon_is_marked():
    made = replace(make(row({"epsilon": 1.0}), row({"epsilon": 1.0}, proved=True)), columns=("epsilon",))
    assert [line[1] for line in table(made)] == ["ε", "1 nominal", "1"]


def test_stand_in_data_come_first():
    made = replace(make(row({"accuracy": 0.9}, paper={"accuracy": 0.8})), stand_in="Other patients.")
    assert next(footnotes(made)) == "Stand-in: Other patients."


def test_footnotes_report_guarantee_traffic_and_settings():
    made = make(row({"cost": 550, "up": 2_500_000, "down": 1_000_000}))
    text = "\n".join(footnotes(made))
    assert "Guarantee: none: it is a test." in text
    assert "550 messages" in text
    assert "2.5 MB up, 1 MB down" in text
    assert "fedavg rounds=2" in text


def test_rankings_are_described_but_not_for_the_short_version():
    low, high = row({"accuracy": 0.5}, name="low"), row({"accuracy": 0.6}, name="high")
    made = replace(make(low, high), rankings=(Ranking(rows=("low", "high"), place="Figure 9"),))
    assert any(line.startswith("Figure 9: low < high") for line in footnotes(made))
    assert not any(line.startswith("Figure 9") for line in footnotes(replace(made, fast=True)))
