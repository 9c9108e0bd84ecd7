import json
from dataclasses import replace

import pytest

from cli.refusals import assert_refused
from tacit.attacks.bounds import OneRunGuesses
from tacit.attacks.scenario import AuditResult, Claim
from tacit.cli import main
from tacit.cli.audit import _conclusion
from tacit.pieces.mechanisms import CentralGaussian

SMALL = ["--task-set", "clients=10", "--set", "noise=1", "cohort=10"]


def test_the_lower_bound_is_printed_with_the_claim(capsys):
    assert main(["audit", "geyer", "--runs", "60", *SMALL]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("claimed ε  ")
    assert lines[1].startswith("lower bound on ε (Clopper-Pearson)  ")
    assert lines[-1] == "The audit found no evidence of leakage (a weak test, not a proof)."


def test_one_run_as_json(capsys):
    assert main(["audit", "geyer", "--canaries", "50", "--json", *SMALL]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["guesses"]["canaries"] == 50
    assert document["violated"] is False
    assert document["claimed_epsilon"] > 0


def test_a_method_without_a_claim_is_audited_too(capsys):
    assert main(["audit", "fl-std", "--runs", "40", "--set", "cohort=10", "--task-set", "clients=10"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "none: no noise is added" in lines[0]
    assert lines[-1].startswith("No privacy is claimed, and the audit found leakage: ε is at least ")


def test_a_violated_claim_is_exit_code_1(capsys, monkeypatch):
    def without_noise(mechanism, total, now):
        return total

    monkeypatch.setattr(CentralGaussian, "after_sum", without_noise)
    small = ["--task-set", "clients=10", "--set", "noise=3", "cohort=10"]
    assert main(["audit", "geyer", "--runs", "120", *small]) == 1
    assert "The claim is violated: ε is at least " in capsys.readouterr().out


def test_every_result_has_its_conclusion():
    claim = Claim(epsilon=2.0, delta=1e-5)

    def conclusion(bound: float, epsilon: float | None = 2.0) -> str:
        return _conclusion(AuditResult(replace(claim, epsilon=epsilon), {"one run": bound}))

    assert conclusion(0.0) == "The audit found no evidence of leakage (a weak test, not a proof)."
    assert conclusion(0.0, epsilon=None).startswith("No privacy is claimed. The audit found no evidence of leakage (")
    assert conclusion(1.5).startswith("The leakage found is within the claim. This is no proof")
    assert conclusion(2.5) == "The claim is violated: ε is at least 2.5, more than claimed."
    assert conclusion(1.5, epsilon=None).startswith("No privacy is claimed, and the audit found leakage")
    at_another_delta = AuditResult(claim, {"Clopper-Pearson": 1.5}, profile_refuted=True)
    assert _conclusion(at_another_delta).startswith("The claim is violated: at another δ")
    assert not AuditResult.of(claim, OneRunGuesses(100, 20, 10)).violated


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("audit geyer --runs 3", "runs=3 >= 20"),
        ("audit geyer --dropouts 2", "dropouts=2.0 in [0, 1)"),
        ("audit geyer --canaries 100000", "canaries=100000 <= 4810"),
    ],
)
def test_wrong_arguments_get_one_clear_sentence(line, words, capsys):
    assert_refused(line, words, capsys)
