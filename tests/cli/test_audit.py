import json
from dataclasses import replace

import pytest

from cli.refusals import assert_refused
from tacit.attacks.bounds import OneRunGuesses
from tacit.attacks.claims import AuditResult, Claim, Power
from tacit.cli import main
from tacit.cli.commands.audit import _conclusion, _power_lines
from tacit.pieces.mechanisms import CentralGaussian

SMALL = ["--task-set", "clients=10", "--rounds", "1", "--set", "noise=1", "cohort=10"]


@pytest.mark.law("audits")
def test_the_lower_bound_is_printed_with_the_claim_and_with_what_could_have_been_missed(capsys):
    assert main(["audit", "geyer", "--runs", "100", *SMALL]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("claimed ε  ")
    assert lines[1].startswith("claimed ε if in every cohort  ")
    assert lines[2].startswith("lower bound on ε (Clopper-Pearson)  ")
    assert lines[3].startswith("lower bound on ε (Gaussian)  ")
    end = lines.index("No violation was found. This is no proof: see what this audit could have missed.")
    assert lines[end + 1].startswith("With a tenth of the claimed noise, ")
    assert lines[end + 2].startswith("Tried: ")
    assert "5 hostile clients in the task's own model" in lines[end + 2]
    assert lines[-1].startswith("Not seen: timing")


def test_one_run_as_json(capsys):
    assert main(["audit", "geyer", "--canaries", "50", "--json", *SMALL]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["evidence"]["canaries"] == 50
    assert 0 <= document["power"]["tenth"] <= 1
    assert document["violated"] is False
    assert document["claimed_epsilon"] > 0
    assert document["tried"] == [
        "Tried: 50 canaries in one run of the engine, with gradients that the adversary chooses."
    ]
    assert document["not_seen"]


@pytest.mark.law("audits")
def test_a_method_without_a_claim_is_audited_too(capsys):
    small = ["--runs", "100", "--rounds", "1", "--set", "cohort=5", "--task-set", "clients=10"]
    assert main(["audit", "fedavg", *small]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "none: no noise is added" in lines[0]
    assert "No privacy is claimed, and the audit found leakage: ε is at least 100." in lines


@pytest.mark.law("audits")
def test_a_violated_claim_is_exit_code_1(capsys, monkeypatch):
    def without_noise(mechanism, total, now):
        return total

    monkeypatch.setattr(CentralGaussian, "after_sum", without_noise)
    small = ["--task-set", "clients=10", "--rounds", "1", "--set", "noise=3", "cohort=10"]
    assert main(["audit", "geyer", "--runs", "100", *small]) == 1
    assert "The claim is violated: ε is at least " in capsys.readouterr().out


def test_every_result_has_its_conclusion():
    claim = Claim(epsilon=2.0, delta=1e-5)

    def conclusion(bound: float, epsilon: float | None = 2.0) -> str:
        return _conclusion(AuditResult(replace(claim, epsilon=epsilon), {"one run": bound}))

    nothing = "No violation was found. This is no proof: see what this audit could have missed."
    assert conclusion(0.0) == conclusion(1.5) == nothing
    assert conclusion(0.0, epsilon=None).startswith(
        "No privacy is claimed. The audit found no leakage, which is no proof"
    )
    assert conclusion(2.5) == "The claim is violated: ε is at least 2.5, more than claimed."
    assert conclusion(1.5, epsilon=None).startswith("No privacy is claimed, and the audit found leakage")
    at_another_delta = AuditResult(claim, {"Clopper-Pearson": 1.5}, profile_refuted=True)
    assert _conclusion(at_another_delta).startswith("The claim is violated: at another δ")
    cohorts = AuditResult(claim, {"Clopper-Pearson": 0.0}, premises=("client 0 was in all cohorts",))
    assert cohorts.violated
    assert _conclusion(cohorts).startswith("The claim is violated: it assumes cohorts that are drawn as declared")
    assert not AuditResult.of(claim, OneRunGuesses(100, 20, 10)).violated


def test_silence_is_never_safety():
    silent = AuditResult(Claim(epsilon=2.0, delta=1e-5), {"Clopper-Pearson": 0.0})
    (weak,) = _power_lines(Power(0.4, None, None), silent)
    assert weak.startswith(
        "With a tenth of the claimed noise, 40 % of such audits would find a violation: this audit is too"
    )
    (strong,) = _power_lines(Power(1.0, 3.5, 1.3), silent)
    assert "less than a factor of 1.3 of missing noise (ε = 3.5), and any leak in what it does not look at" in strong
    refuted = AuditResult(Claim(epsilon=2.0, delta=1e-5), {"Clopper-Pearson": 3.0})
    assert _power_lines(Power(1.0, 3.5, 1.3), refuted) == []


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("audit geyer --runs 3", "runs=3 >= 100"),
        ("audit geyer --dropouts 2", "dropouts=2.0 in [0, 1)"),
        ("audit geyer --canaries 100000", "canaries=100000 <= 4810"),
    ],
)
def test_wrong_arguments_get_one_clear_sentence(line, words, capsys):
    assert_refused(line, words, capsys)
