import json
from typing import Any

import pytest

from tacit import cli

BASE = ["--delta", "1e-5", "--rate", "1/60", "--accountant", "rdp-classic"]
SIZED = ["--delta", "1e-5", "--population", "6000", "--accountant", "rdp"]


def plan(capsys, *line: str) -> dict[str, Any]:
    assert cli.main(["calibrate", *line, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert isinstance(found, dict)
    return found


def test_the_noise_for_a_budget(capsys):
    found = plan(capsys, *BASE, "--epsilon", "1", "--rounds", "200")
    assert found["noise"] == pytest.approx(1.5406, abs=1e-3)
    assert found["epsilon"] <= 1


def test_epsilon_after_every_round(capsys):
    found = plan(capsys, *BASE, "--noise", "1.54", "--rounds", "200")
    assert len(found["epsilons"]) == 200
    assert round(found["epsilons"][59], 4) == 0.7641
    assert round(found["epsilon"], 4) == 1.0006


def test_the_rounds_for_a_budget_and_a_noise(capsys):
    assert plan(capsys, *BASE, "--noise", "1.54", "--epsilon", "1")["rounds"] == 199
    assert plan(capsys, *BASE, "--noise", "400", "--epsilon", "9")["or_more"] is True


def test_a_rate_is_a_cohort_of_a_population(capsys):
    by_rate = plan(capsys, "--delta", "1e-5", "--rate", "1/60", "--noise", "2", "--rounds", "9", "--accountant", "rdp")
    by_size = plan(capsys, *SIZED, "--cohort", "100", "--noise", "2", "--rounds", "9")
    assert by_rate["epsilons"] == pytest.approx(by_size["epsilons"])


def test_a_schedule_of_sizes(capsys):
    found = plan(capsys, *SIZED, "--schedule", "3x100,2x200", "--noise", "2")
    constant = plan(capsys, *SIZED, "--cohort", "100", "--noise", "2", "--rounds", "3")
    assert found["rounds"] == 5
    assert found["epsilons"][:3] == constant["epsilons"]
    assert plan(capsys, *SIZED, "--schedule", "3x100,2x200", "--epsilon", "1")["rounds"] == 5
    assert plan(capsys, *SIZED, "--schedule", "3x100,2x200", "--epsilon", "1", "--noise", "2")["rounds"] > 5


def test_less_amplification_costs_more(capsys):
    def epsilon(*line: str) -> float:
        return float(str(plan(capsys, *SIZED, "--noise", "3", "--rounds", "5", *line)["epsilon"]))

    poisson, fixed = epsilon("--cohort", "100"), epsilon("--cohort", "100", "--sampling", "fixed")
    replaced = epsilon("--cohort", "100", "--sampling", "fixed", "--adjacency", "replace-one")
    assert poisson < fixed < replaced < epsilon("--sampling", "everyone")


def test_the_default_is_the_tight_accountant_where_it_has_a_bound(capsys):
    line = ["--delta", "1e-5", "--population", "60", "--cohort", "6", "--noise", "3", "--rounds", "2"]
    assert plan(capsys, *line)["accountant"] == "pld"
    assert plan(capsys, *line, "--sampling", "fixed")["accountant"] == "pld"
    assert plan(capsys, *line, "--sampling", "fixed", "--adjacency", "replace-one")["accountant"] == "pld"
    assert plan(capsys, *line, "--sampling", "fixed", "--adjacency", "zero-out")["accountant"] == "rdp"


def test_the_printed_table(capsys):
    assert cli.main(["calibrate", *BASE, "--noise", "1.54", "--rounds", "3"]) == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    lines = printed.out.splitlines()
    assert lines[0].split() == ["round", "ε"]
    assert [line.split()[0] for line in lines[1:4]] == ["1", "2", "3"]
    assert lines[5].split() == ["noise", "multiplier", "1.5400"]
    assert all(line == line.rstrip() for line in lines)


def test_noise_is_never_printed_below_what_is_needed(capsys):
    exact = plan(capsys, *BASE, "--epsilon", "1", "--rounds", "200")["noise"]
    assert cli.main(["calibrate", *BASE, "--epsilon", "1", "--rounds", "200"]) == 0
    printed = capsys.readouterr().out.split()[2]
    assert exact <= float(printed) <= exact + 1e-4


def test_an_infinite_epsilon_is_null_in_json(capsys):
    found = plan(capsys, "--delta", "1e-5", "--rate", "1/2", "--noise", "0.001", "--rounds", "1")
    assert found["epsilon"] is None


def test_a_weak_delta_is_a_warning(capsys):
    line = ["calibrate", "--delta", "1e-2", "--population", "1000", "--cohort", "9", "--noise", "2", "--rounds", "2"]
    assert cli.main([*line, "--accountant", "rdp", "--json"]) == 0
    printed = capsys.readouterr()
    assert "δ = 0.01 is too large: choose it well below 1/1000." in printed.err
    assert json.loads(printed.out)["rounds"] == 2


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("--epsilon 0 --delta 1e-5 --rate .1 --rounds 5", "epsilon=0.0 > 0"),
        ("--epsilon -3 --delta 1e-5 --rate .1 --rounds 5", "epsilon=-3.0 > 0"),
        ("--epsilon 1 --delta 1.5 --rate .1 --rounds 5", "delta=1.5 in (0, 1)"),
        ("--epsilon 1 --delta 0 --rate .1 --rounds 5", "delta=0.0 in (0, 1)"),
        ("--epsilon 1 --delta nan --rate .1 --rounds 5", "delta=nan in (0, 1)"),
        ("--epsilon 1 --delta 1e-5 --rate .1 --noise 0", "noise=0 > 0"),
        ("--epsilon 1 --delta 1e-5 --rate 2 --rounds 5", "rate=2.0 in (0, 1]"),
        ("--epsilon 1 --delta 1e-5 --rate .1 --rounds 0", "rounds=0 >= 1"),
        ("--epsilon 1 --delta 1e-5 --rate .1", "two of --epsilon, --noise and --rounds, got --epsilon"),
        ("--delta 1e-5 --rate .1", "got none of them"),
        ("--epsilon 1 --noise 2 --rounds 3 --delta 1e-5 --rate .1", "got all three"),
        ("--epsilon 1 --delta 1e-5 --rounds 5", "--rate, or --population with --cohort or --schedule"),
        ("--epsilon 1 --delta 1e-5 --rounds 5 --population 9", "either --cohort or --schedule"),
        ("--noise 1 --delta 1e-5 --population 100 --schedule 3x20,4x200", "size=200 <= population=100"),
        ("--noise 1 --delta 1e-5 --population 100 --cohort 200 --rounds 3", "size=200 <= population=100"),
        ("--noise 1 --delta 1e-5 --population 9 --cohort 2.5 --rounds 3 --sampling fixed", "a whole number"),
        ("--noise 1 --delta 1e-5 --rate .1 --rounds 3 --sampling fixed", "--population and --cohort"),
        ("--noise 1 --delta 1e-5 --rate .1 --rounds 3 --sampling everyone", "with --sampling everyone"),
        ("--noise .1 --delta 1e-5 --rate .5 --epsilon .5 --accountant rdp", "Not even one round"),
        (f"--epsilon 1 --delta 1e-5 --rate .1 --rounds {10**400}", "rounds <= 1000000, got far more"),
        (f"--epsilon 1 --delta 1e-5 --population 100 --schedule {10**20}x9", "rounds <= 1000000, got far more"),
        (
            "--epsilon 1 --delta 1e-5 --unit record --size 300 --batch 6 --epochs 1e9",
            "steps <= 1000000, got 50000000000",
        ),
        ("--epsilon 1 --delta 1e-5 --unit record --size 300 --batch 6 --epochs inf", "epochs=inf > 0 and finite"),
        ("--epsilon 1 --delta 1e-13 --rate .1 --rounds 9", "delta=1e-13 >= 1e-12"),
        ("--noise 1e300 --delta 1e-5 --rate .1 --rounds 9", "noise multiplier 1e+300 in [0, 1e+09]"),
    ],
)
def test_bad_input_gets_one_sentence_and_exit_code_2(line, words, capsys):
    assert cli.main(["calibrate", *line.split()]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert words in printed.err
    assert printed.err.count("\n") == 1


@pytest.mark.parametrize("line", ["--epsilon 1 --rate .1 --rounds 5", "--delta x", "--delta 1e-5 --schedule 3y4"])
def test_wrong_arguments_get_one_line_and_exit_code_2(line, capsys):
    with pytest.raises(SystemExit) as caught:
        cli.main(["calibrate", *line.split()])
    assert caught.value.code == 2
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize("unit", ["record", "person"])
def test_a_plan_names_its_unit(unit: str, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--size", "800", "--batch", "40", "--steps", "20", "--noise", "2", "--delta", "1e-5"]
    assert cli.main(["calibrate", "--unit", unit, *options]) == 0
    first, second, *_ = capsys.readouterr().out.splitlines()
    assert first.split() == ["unit", unit]
    assert second.split() == ["rate", "of", "a", unit, "0.05"]
